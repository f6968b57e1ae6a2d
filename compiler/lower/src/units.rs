//! Units of quantities. Unlike units do not add; products and quotients combine.

use std::borrow::Cow;

use nrl_syntax::ast::UnitFactor;

/// A product of base units with nonzero powers, sorted by name; empty for a plain number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit(Vec<(Cow<'static, str>, i32)>);

/// What a file adds to the units of the language, by name: the unit and its factor.
pub type Own<'o> = &'o dyn Fn(&str) -> Option<(Unit, f64)>;

/// Base units with every spelling. The factor turns one of the spelling into base units.
const SPELLINGS: &[(&str, &str, f64)] = &[
    ("token", "token", 1.0),
    ("tokens", "token", 1.0),
    ("prompt", "prompt", 1.0),
    ("prompts", "prompt", 1.0),
    ("sample", "sample", 1.0),
    ("samples", "sample", 1.0),
    ("group", "group", 1.0),
    ("groups", "group", 1.0),
    ("pair", "pair", 1.0),
    ("pairs", "pair", 1.0),
    ("row", "row", 1.0),
    ("rows", "row", 1.0),
    ("step", "step", 1.0),
    ("steps", "step", 1.0),
    ("update", "update", 1.0),
    ("updates", "update", 1.0),
    ("epoch", "epoch", 1.0),
    ("epochs", "epoch", 1.0),
    ("round", "round", 1.0),
    ("rounds", "round", 1.0),
    ("node", "node", 1.0),
    ("nodes", "node", 1.0),
    ("gpu", "gpu", 1.0),
    ("gpus", "gpu", 1.0),
    ("rank", "rank", 1.0),
    ("ranks", "rank", 1.0),
    ("worker", "worker", 1.0),
    ("workers", "worker", 1.0),
    ("microbatch", "microbatch", 1.0),
    ("ms", "second", 1e-3),
    ("s", "second", 1.0),
    ("min", "second", 60.0),
    ("h", "second", 3600.0),
    ("d", "second", 86400.0),
    ("B", "byte", 1.0),
    ("kB", "byte", 1e3),
    ("MB", "byte", 1e6),
    ("GB", "byte", 1e9),
    ("TB", "byte", 1e12),
    ("KiB", "byte", 1024.0),
    ("MiB", "byte", 1_048_576.0),
    ("GiB", "byte", 1_073_741_824.0),
    ("TiB", "byte", 1_099_511_627_776.0),
    ("TFLOP", "flop", 1e12),
    ("%", "", 0.01),
];

impl Unit {
    /// No unit.
    pub fn none() -> Unit {
        Unit::default()
    }

    /// The base unit `name`, to the first power.
    pub fn of(name: &'static str) -> Unit {
        Unit(vec![(Cow::Borrowed(name), 1)])
    }

    /// The unit that a file calls `name`, in the singular or plural.
    pub fn own(name: &str) -> Unit {
        let one = name.strip_suffix('s').filter(|n| !n.is_empty()).unwrap_or(name);
        Unit(vec![(Cow::Owned(one.to_string()), 1)])
    }

    /// Whether the language has a unit of this spelling.
    pub fn is_known(name: &str) -> bool {
        SPELLINGS.iter().any(|(s, ..)| *s == name)
    }

    /// The unit to a power.
    fn to(&self, power: i32) -> Unit {
        Unit(self.0.iter().map(|(n, p)| (n.clone(), p * power)).collect())
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a written unit: the unit and the factor to its base units.
    pub fn read(factors: &[UnitFactor], own: Own<'_>) -> Result<(Unit, f64), String> {
        let mut unit = Unit::none();
        let mut scale = 1.0;
        for f in factors {
            let known = SPELLINGS.iter().find(|(s, _, _)| *s == f.name.text);
            let known = known.map(|(_, base, factor)| match base.is_empty() {
                true => (Unit::none(), *factor),
                false => (Unit::of(base), *factor),
            });
            let Some((base, factor)) = known.or_else(|| own(&f.name.text)) else {
                return Err(f.name.text.clone());
            };
            scale *= factor.powi(f.power);
            unit = unit.times(&base.to(f.power));
        }
        Ok((unit, scale))
    }

    /// How a unit is written that people spell out.
    pub fn usual(name: &str) -> Option<&'static str> {
        const USUAL: &[(&str, &str)] = &[
            ("millisecond", "ms"),
            ("second", "s"),
            ("sec", "s"),
            ("minute", "min"),
            ("hour", "h"),
            ("hr", "h"),
            ("day", "d"),
            ("byte", "B"),
            ("kilobyte", "kB"),
            ("megabyte", "MB"),
            ("gigabyte", "GB"),
            ("terabyte", "TB"),
            ("percent", "%"),
            ("gb", "GB"),
            ("mb", "MB"),
            ("kb", "kB"),
            ("gib", "GiB"),
            ("mib", "MiB"),
        ];
        let lower = name.to_lowercase();
        let one = lower.strip_suffix('s').unwrap_or(&lower);
        USUAL.iter().find(|(n, _)| *n == one || *n == lower).map(|(_, unit)| *unit)
    }

    /// Every spelling, for suggestions.
    pub fn spellings() -> impl Iterator<Item = &'static str> {
        SPELLINGS.iter().map(|(s, _, _)| *s)
    }

    /// The unit that a type name such as `tokens` asks for.
    pub fn type_name(name: &str) -> Option<Unit> {
        SPELLINGS
            .iter()
            .find(|(s, base, f)| *s == name && *f == 1.0 && !base.is_empty())
            .map(|(_, base, _)| Unit::of(base))
    }

    pub fn times(&self, other: &Unit) -> Unit {
        let mut out = self.0.clone();
        for (name, power) in &other.0 {
            match out.iter_mut().find(|(n, _)| n == name) {
                Some((_, p)) => *p += power,
                None => out.push((name.clone(), *power)),
            }
        }
        out.retain(|(_, p)| *p != 0);
        out.sort_unstable();
        Unit(out)
    }

    pub fn inverse(&self) -> Unit {
        self.to(-1)
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_none() {
            return f.write_str("a plain number");
        }
        let show = |positive: bool| {
            let part = |(n, p): &(Cow<'static, str>, i32)| {
                if p.abs() == 1 { n.to_string() } else { format!("{n}^{}", p.abs()) }
            };
            self.0
                .iter()
                .filter(|(_, p)| (*p > 0) == positive)
                .map(part)
                .collect::<Vec<_>>()
                .join("*")
        };
        let (up, down) = (show(true), show(false));
        match (up.is_empty(), down.is_empty()) {
            (false, true) => write!(f, "{up}s"),
            (false, false) => write!(f, "{up}s/{down}"),
            _ => write!(f, "1/{down}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_cancel() {
        let per = Unit::of("sample").times(&Unit::of("prompt").inverse());
        assert_eq!(per.times(&Unit::of("prompt")), Unit::of("sample"));
        assert_eq!(per.to_string(), "samples/prompt");
        assert!(per.times(&per.inverse()).is_none());
    }
}
