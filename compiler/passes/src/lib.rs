//! Graph to graph: simplify, grad, shard, fuse, schedule.
