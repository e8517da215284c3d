"""Request traces in Mooncake's JSONL format: checked before a sweep, or made up from a seed.

One JSON object a line describes one request: `timestamp` (arrival, ms), `input_length` and
`output_length` (tokens), and `hash_ids`, one id per block of 512 input tokens. Requests that share
leading ids share a prefix of their input. Requests of one `session_id` are its turns: a later one
comes its `delay` (ms), or the difference of the timestamps, after the answer before it.
"""
