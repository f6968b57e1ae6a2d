//! NeMo RL recipes: YAML with inheritance and overrides in, the same out.
