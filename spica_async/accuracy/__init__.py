"""How far replays are from silicon, by the measurements that ship with the engine."""
