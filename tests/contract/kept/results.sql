BEGIN TRANSACTION;
CREATE TABLE result_cache_entries (
            key TEXT NOT NULL PRIMARY KEY,
            noisy INTEGER NOT NULL,
            measured INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            hits INTEGER NOT NULL,
            used_at DOUBLE PRECISION NOT NULL
        );
INSERT INTO "result_cache_entries" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',0,1,124,0,1.79610146139600133897e+09);
INSERT INTO "result_cache_entries" VALUES('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',1,3,372,0,1.79610146140776801111e+09);
CREATE TABLE result_cache_measurements (
            key TEXT NOT NULL REFERENCES result_cache_entries (key) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            body TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            worker TEXT NOT NULL,
            measured_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (key, number)
        );
INSERT INTO "result_cache_measurements" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',0,'{"outcome":"feasible","report":{"output_throughput_tok_s":1.5,"mean_ttft_ms":1.6},"build_seconds":0.25,"replay_seconds":1.5}',124,'worker 1.5',1.79610146139600133897e+09);
INSERT INTO "result_cache_measurements" VALUES('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',1,'{"outcome":"feasible","report":{"output_throughput_tok_s":3.0,"mean_ttft_ms":3.1},"build_seconds":0.25,"replay_seconds":1.5}',124,'worker 3',1.7961014614052531719e+09);
INSERT INTO "result_cache_measurements" VALUES('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',2,'{"outcome":"feasible","report":{"output_throughput_tok_s":1.0,"mean_ttft_ms":1.1},"build_seconds":0.25,"replay_seconds":1.5}',124,'worker 1',1.79610146140665197372e+09);
INSERT INTO "result_cache_measurements" VALUES('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',3,'{"outcome":"feasible","report":{"output_throughput_tok_s":2.0,"mean_ttft_ms":2.1},"build_seconds":0.25,"replay_seconds":1.5}',124,'worker 2',1.79610146140776801111e+09);
CREATE TABLE result_cache_version (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO "result_cache_version" VALUES(1);
COMMIT;
