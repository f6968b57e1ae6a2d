//! One layer of experts alone, as benchmarks of a layer measure it.
//!
//! In: the name of a case of Megatron-LM's `moe_perf` tests, such as `moe-layer:deepseek_a2a_tp1ep8_bf16`. Out: its dims, and a
//! model whose layer is a router and its experts, in the language. Sizes are those of
//! `tests/functional_tests/test_cases/common/moe_perf/test_cases.py` (NVIDIA/Megatron-LM): one micro-batch of one sequence per rank,
//! routed evenly.

use super::Row;

/// What a case computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    pub hidden: usize,
    pub experts: usize,
    pub topk: usize,
    /// Columns of an expert, and of the one that every token takes.
    pub columns: usize,
    pub shared: usize,
}

/// Tokens of the sequence.
const LENGTH: f64 = 4096.0;

impl Layer {
    /// The layer that a row measures.
    pub fn of(row: &Row) -> Option<Layer> {
        let case = row.model.strip_prefix("moe-layer:")?;
        let mixtral = Layer { hidden: 4096, experts: 8, topk: 2, columns: 14336, shared: 0 };
        let deepseek = Layer { hidden: 7168, experts: 32, topk: 8, columns: 2048, shared: 2048 };
        let known = [("mixtral", mixtral), ("deepseek", deepseek)];
        known.into_iter().find(|(name, _)| case.starts_with(name)).map(|(_, layer)| layer)
    }

    /// The row with what its table leaves out.
    pub fn filled(&self, row: &Row) -> Row {
        let one = |x: Option<usize>| x.unwrap_or(1);
        let ranks = one(row.tp) * one(row.cp) * one(row.ep);
        Row {
            layers: Some(1),
            gpus: row.gpus.or(Some(ranks)),
            seq: row.seq.or(Some(LENGTH)),
            mbs: row.mbs.or(Some(1.0)),
            experts: row.experts.or(Some(self.experts)),
            ..row.clone()
        }
    }

    /// The model, and the call that makes it.
    pub fn model(&self, length: f64) -> (&'static str, String) {
        let Layer { hidden, experts, topk, columns, shared } = *self;
        let sizes = format!(
            "hidden: {hidden}, experts: {experts}, chosen: {topk}, columns: {columns}, shared: {shared}"
        );
        (MODEL, format!("moe_layer({{{sizes}}}, context: {length:.0} tokens, dtype: bf16)"))
    }
}

const MODEL: &str = r#"
record Sizes {
  hidden: int
  experts: int
  chosen: int
  columns: int
  shared: int
}

model moe_layer(cfg: Sizes) {
  dim d = cfg.hidden, choice = cfg.experts, expert = cfg.experts, ef = cfg.columns,
    sf = if cfg.shared > 0 { cfg.shared } else { 1 }, vocab = 64

  param embed, head: [vocab, d] from "{embed,head}"

  layers: repeat 1 {
    param router: [choice, d]            from "{i}.router"
    param gate, up: [expert, ef, d]      from "{i}.{e}.{gate,up}"
    param down: [expert, d, ef]          from "{i}.{e}.down"
    param shared_gate, shared_up: [sf, d] from "{i}.shared.{gate,up}" if cfg.shared > 0
    param shared_down: [d, sf]           from "{i}.shared.down" if cfg.shared > 0
  }

  fn hidden(ids: id(vocab)[tok]) -> f32[tok, d] {
    for l in layers carrying h = embed[ids] {
      let score = h @ l.router
      let share = exp(score - stop(maximum(score, over: choice)))
      let kept  = share * top_k(score, cfg.chosen, over: choice)
      let kept  = route(kept / sum(kept, over: choice), cfg.chosen, from: choice, to: expert)
      let sent  = repeated(h, to: expert)
      let a     = silu(dot(sent, l.gate, over: d)) * dot(sent, l.up, over: d) * kept
      let all   = sum(dot(a, l.down, over: ef), over: expert)
      if cfg.shared > 0 {
        all + (silu(h @ l.shared_gate) * (h @ l.shared_up)) @ l.shared_down
      } else { all }
    }
  }

  fn forward(ids: id(vocab)[tok]) -> f32[tok, vocab] = hidden(ids) @ head
}
"#;
