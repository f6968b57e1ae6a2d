//! The table of known settings, read once from `keys.txt`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What is known of one setting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Key {
    /// The types that it may have: int, num, bool, text, list, map or any.
    pub types: Vec<&'static str>,
    pub nullable: bool,
    /// A map whose keys nobody checks.
    pub free: bool,
    /// A map in which only near misses of known names are told.
    pub open: bool,
    /// A map in which the trainer itself refuses unknown names.
    pub strict: bool,
    /// Nobody reads it.
    pub dead: bool,
    /// Where it went.
    pub to: Option<&'static str>,
    /// The section whose names it has too.
    pub like: Option<&'static str>,
}

/// Sections and the settings in them.
#[derive(Debug, Default)]
pub struct Schema {
    sections: BTreeMap<&'static str, BTreeMap<&'static str, Key>>,
}

/// The table.
pub fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| parse(include_str!("../../keys.txt")))
}

fn parse(text: &'static str) -> Schema {
    let mut schema = Schema::default();
    let mut section = "";
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
            continue;
        }
        let mut words = line.split(' ');
        let name = words.next().unwrap_or("");
        let key = words.fold(Key::default(), read);
        schema.sections.entry(section).or_default().insert(name, key);
    }
    schema
}

fn read(mut key: Key, word: &'static str) -> Key {
    match word {
        "free" => (key.free, key.nullable) = (true, true),
        "open" => key.open = true,
        "strict" => key.strict = true,
        "dead" => key.dead = true,
        _ => match word.split_once('=') {
            Some(("to", path)) => key.to = Some(path),
            Some(("like", path)) => key.like = Some(path),
            _ => {
                let types = word.strip_suffix('?');
                key.nullable = types.is_some();
                key.types = types.unwrap_or(word).split('|').collect();
            }
        },
    }
    key
}

impl Schema {
    /// The setting `name` of a section, and the prefix of its own path in the table: that of
    /// another section, if the section has its names from there.
    pub fn key(&self, section: &str, name: &str) -> Option<(&Key, String)> {
        let prefix = |s: &str| if s.is_empty() { String::new() } else { format!("{s}.") };
        let mut tried = section.to_string();
        if let Some(key) = self.sections.get(section).and_then(|s| s.get(name)) {
            return Some((key, prefix(section)));
        }
        // A section has the names of another one too: `policy.generation.mcore_generation_config`.
        for _ in 0..2 {
            tried = self.like(&tried)?.to_string();
            if let Some(key) = self.sections.get(tried.as_str()).and_then(|s| s.get(name)) {
                return Some((key, prefix(&tried)));
            }
        }
        None
    }

    fn like(&self, section: &str) -> Option<&'static str> {
        let (parent, name) = section.rsplit_once('.').unwrap_or(("", section));
        self.sections.get(parent)?.get(name)?.like
    }

    /// Whether a section has names of its own.
    pub fn has(&self, section: &str) -> bool {
        self.sections.contains_key(section)
    }

    /// The section whose names a map has: its own if there are any, else those of the other.
    pub fn resolve(&self, section: &str, key: &Key) -> String {
        match key.like {
            Some(other) if !self.has(section) => other.to_string(),
            _ => section.to_string(),
        }
    }

    /// The names of a section that somebody reads, with those it has from another.
    pub fn names(&self, section: &str) -> Vec<&'static str> {
        let mut all = vec![];
        let mut next = Some(section.to_string());
        while let Some(section) = next {
            let names = self.sections.get(section.as_str()).into_iter().flatten();
            all.extend(names.filter(|(_, key)| !key.dead).map(|(name, _)| *name));
            next = self.like(&section).filter(|l| *l != section).map(str::to_string);
            if all.len() > 2_000 {
                break;
            }
        }
        all
    }

    /// Sections that have a setting of this name that somebody reads.
    pub fn homes(&self, name: &str) -> Vec<&'static str> {
        let has = |s: &BTreeMap<&'static str, Key>| s.get(name).is_some_and(|key| !key.dead);
        self.sections.iter().filter(|(_, names)| has(names)).map(|(section, _)| *section).collect()
    }

    /// Whether unknown names of a section are refused by the trainer.
    pub fn strict(&self, section: &str) -> bool {
        let (parent, name) = section.rsplit_once('.').unwrap_or(("", section));
        self.sections.get(parent).and_then(|s| s.get(name)).is_some_and(|key| key.strict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let schema = schema();
        let types = ["int", "num", "bool", "text", "list", "map", "any"];
        let mut count = 0;
        for (section, names) in &schema.sections {
            for (name, key) in names {
                count += 1;
                assert!(key.types.iter().all(|t| types.contains(t)), "{section}.{name}: {key:?}");
                assert!(key.free || key.open || !key.types.is_empty(), "{section}.{name}");
            }
        }
        assert!(count > 600, "{count}");
        let (key, home) = schema.key("policy", "train_global_batch_size").unwrap();
        assert_eq!((key.types.as_slice(), home.as_str()), (["int"].as_slice(), "policy."));
        let inherited = schema.key("policy.generation.mcore_generation_config", "moe_router_dtype");
        assert!(inherited.is_some());
        assert_eq!(
            schema.homes("num_prompts_per_step"),
            ["distillation", "generation", "grpo", "ppo"]
        );
    }
}
