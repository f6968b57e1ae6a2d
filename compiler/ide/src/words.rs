//! The words of the language, by where they stand; a test keeps them equal to the grammar's.

/// Words that are never names.
pub const RESERVED: [&str; 15] = [
    "and", "or", "not", "if", "then", "else", "match", "for", "true", "false", "none", "some",
    "rest", "let", "fn",
];

/// Words that begin an item.
pub const ITEMS: [&str; 13] = [
    "enum", "extern", "fn", "mesh", "model", "plan", "pool", "recipe", "record", "rollout", "test",
    "use", "view",
];

/// Words that begin a statement of a recipe, a phase or a step.
pub const STATEMENTS: [&str; 23] = [
    "append",
    "assume",
    "checkpoint",
    "expect",
    "every",
    "freeze",
    "from",
    "halt",
    "let",
    "mesh",
    "phase",
    "place",
    "plan",
    "pool",
    "publish",
    "remove",
    "require",
    "run",
    "seed",
    "set",
    "step",
    "update",
    "view",
];

/// Words inside of items, statements and expressions.
pub const INSIDE: [&str; 44] = [
    "as",
    "at",
    "axes",
    "back",
    "by",
    "carrying",
    "collect",
    "deadline",
    "delay",
    "dim",
    "env",
    "extends",
    "id",
    "in",
    "init",
    "keep",
    "latest",
    "minimising",
    "minimizing",
    "most",
    "of",
    "on",
    "over",
    "param",
    "pending",
    "recompute",
    "reduce",
    "repeat",
    "replicated",
    "retries",
    "scan",
    "split",
    "stages",
    "state",
    "the",
    "timeout",
    "to",
    "until",
    "virtual",
    "when",
    "where",
    "with",
    "within",
    "workers",
];
