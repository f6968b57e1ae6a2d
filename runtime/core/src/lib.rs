//! Models, data, rollouts, rewards, checkpoints and the run loop.
