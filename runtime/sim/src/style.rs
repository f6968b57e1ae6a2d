//! What a stack of software is like, as far as its speed goes: properties, not names.
//!
//! In: the name of a stack (`megatron-bridge 26.04`, `prime-rl 2026-01 fa2 rl`: a family, a version, marks) and of a device. Out:
//! the labels that [`crate::effects`] hang on: the generation of the device, how passes over memory and launches are done, which kernel
//! computes attention. A family that nobody measured has all of them but its own.

/// How a stack launches and fuses what is not a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Megatron of 2021 and 2022 and what was built on it: fused by hand, scores of attention in memory.
    Unfused,
    /// Transformer Engine and Megatron-Core: fused by hand, heavy on the host.
    Fused,
    /// Modules of PyTorch with kernels of their own for attention and norms.
    Modules,
    /// Passes over memory are fused by a compiler, or by a library such as Liger.
    Compiled,
    /// Modules of PyTorch as they are written: a kernel an operation.
    Eager,
}

impl Kind {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unfused => "unfused",
            Kind::Fused => "fused",
            Kind::Modules => "modules",
            Kind::Compiled => "compiled",
            Kind::Eager => "eager",
        }
    }
}

/// What is known of a family: its name, its kind, the kernel of its attention.
const FAMILIES: &[(&str, Kind, &str)] = &[
    ("megatron-deepspeed", Kind::Unfused, "scores"),
    ("megatron-2022", Kind::Unfused, "scores"),
    ("megatron-bridge", Kind::Fused, "new"),
    ("megatron", Kind::Fused, "new"),
    ("nemo-rl", Kind::Fused, "new"),
    ("hai-llm", Kind::Fused, "new"),
    ("llm-foundry", Kind::Modules, "triton"),
    ("internlm", Kind::Modules, "fa2"),
    ("nanotron", Kind::Modules, "fa2"),
    ("lit-gpt", Kind::Modules, "fa2"),
    ("colossal-ai", Kind::Modules, "fa2"),
    ("automodel", Kind::Modules, "new"),
    ("meta", Kind::Compiled, "fa2"),
    ("torchtitan", Kind::Compiled, "fa2"),
    ("olmo", Kind::Compiled, "fa2"),
    ("torchtune", Kind::Compiled, "fa2"),
    ("xla", Kind::Compiled, "new"),
    ("fsdp", Kind::Compiled, "fa2"),
    ("deepspeed", Kind::Compiled, "new"),
    ("prime-rl", Kind::Eager, "new"),
    ("automodel-hf", Kind::Eager, "fa2"),
    ("nemo-rl-dtensor", Kind::Eager, "new"),
    ("verl", Kind::Eager, "fa2"),
    ("transformers", Kind::Eager, "fa2"),
];

/// Marks that say more of one run: attention of FlashAttention 2 or 3, logits in f32 with passes of their own (`rl`), an
/// expert after another (`loop`), an optimizer on the host, a device held at 500 W with slower memory, a benchmark too short for power to
/// matter (`burst`), products in 32 bits.
const MARKS: &[&str] = &["fa2", "fa3", "rl", "loop", "host", "500w", "burst", "fp32"];

/// A stack on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    pub family: String,
    pub kind: Kind,
    /// Kernel of attention.
    pub attention: &'static str,
    /// In the order of their table.
    pub marks: Vec<&'static str>,
    pub generation: &'static str,
    pub device: String,
}

/// A label, and the class of labels that it is one of.
pub type Label = (&'static str, String);

impl Style {
    /// The style of `stack` on the device called `device`.
    pub fn of(stack: &str, device: &str) -> Style {
        let family = family(stack).to_lowercase();
        let known = FAMILIES.iter().find(|(name, ..)| *name == family);
        let (kind, mut attention) = known.map_or((Kind::Modules, "fa2"), |(_, k, a)| (*k, *a));
        let words: Vec<&str> = stack.split_whitespace().skip(1).collect();
        let marks: Vec<&str> = MARKS.iter().copied().filter(|m| words.contains(m)).collect();
        let generation = generation(device);
        if marks.contains(&"fa2") {
            attention = "fa2";
        } else if marks.contains(&"fa3") {
            attention = "new";
        }
        match (generation, attention) {
            // What came after FlashAttention 2 is for later devices; it is for none before.
            ("ampere" | "ada", "new") => attention = "fa2",
            ("volta", "new" | "fa2" | "triton") => attention = "blocks",
            _ => {}
        }
        Style { family, kind, attention, marks, generation, device: device.to_string() }
    }

    /// Labels, from the widest to the narrowest.
    pub fn labels(&self) -> Vec<Label> {
        let mut all = vec![
            ("all", "all".to_string()),
            ("generation", self.generation.to_string()),
            ("kind", self.kind.name().to_string()),
            ("attention", format!("{} on {}", self.attention, self.generation)),
            ("device", self.device.clone()),
            ("family", self.family.clone()),
            ("family on device", format!("{} on {}", self.family, self.device)),
        ];
        // Its stacks replay graphs; on a GH200 nothing says so.
        if self.device.starts_with("GB") {
            all.push(("host", "grace".to_string()));
        }
        all.extend(self.marks.iter().map(|m| ("mark", m.to_string())));
        all
    }

    /// Family and marks: what runs of one entry of a table share besides their device.
    pub fn name(&self) -> String {
        std::iter::once(self.family.as_str())
            .chain(self.marks.iter().copied())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// `megatron-bridge` of `megatron-bridge 26.04`.
pub fn family(stack: &str) -> &str {
    stack.split_whitespace().next().unwrap_or(stack)
}

/// `26.04` of `megatron-bridge 26.04`; empty if the stack has none.
pub fn version(stack: &str) -> &str {
    let second = stack.split_whitespace().nth(1).unwrap_or("");
    if MARKS.contains(&second) { "" } else { second }
}

/// The generation of a device, by its name; one that is not known counts as the middle one.
pub fn generation(device: &str) -> &'static str {
    let starts = |all: &[&str]| all.iter().any(|p| device.starts_with(p));
    match () {
        () if starts(&["V100", "T4", "TITAN-RTX", "RTX-20"]) => "volta",
        () if starts(&["L4", "RTX-40"]) => "ada",
        () if starts(&["A", "RTX"]) => "ampere",
        () if starts(&["B", "GB", "R"]) => "blackwell",
        () => "hopper",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_have_properties() {
        let s = Style::of("prime-rl 2026-01 fa2 rl", "H100");
        assert_eq!((s.kind, s.attention, s.generation), (Kind::Eager, "fa2", "hopper"));
        assert_eq!(s.name(), "prime-rl fa2 rl");
        assert_eq!(version("prime-rl 2026-01 fa2 rl"), "2026-01");
        assert_eq!(version("deepspeed host"), "");
        // Kernels of later devices do not run on an A100.
        assert_eq!(Style::of("megatron 0.14", "A100").attention, "fa2");
        // Nobody heard of it: its labels are those of its kind and device.
        let s = Style::of("somebody 1", "GB200");
        assert!(s.labels().contains(&("host", "grace".to_string())));
        assert_eq!((s.kind, s.generation), (Kind::Modules, "blackwell"));
    }

    #[test]
    fn devices_belong_to_generations() {
        let all = [
            ("V100", "volta"),
            ("RTX-2080-Ti", "volta"),
            ("RTX-3090", "ampere"),
            ("A100-PCIe", "ampere"),
            ("L40S", "ada"),
            ("RTX-4090", "ada"),
            ("GH200", "hopper"),
            ("H20", "hopper"),
            ("GB300", "blackwell"),
        ];
        for (device, of) in all {
            assert_eq!(generation(device), of, "{device}");
        }
        // FlashAttention 2 asks for Ampere.
        assert_eq!(Style::of("torchtitan", "V100").attention, "blocks");
        assert_eq!(Style::of("megatron", "RTX-4090").attention, "fa2");
    }
}
