//! Seconds of the trainer's passes over the samples of a step, from dims of a model and a mesh.
//!
//! In: dims, mesh, tokens of every sample, the budget of a micro-batch, rates. Out: seconds of updates and of
//! forward passes. Samples are packed first fit by falling length into micro-batches; a pipeline pads each to the
//! budget. Per micro-batch and stage: products, attention, exchange between ranks, and the host, which
//! is what small experts wait for.

use serde::{Deserialize, Serialize};

use super::shape::Shape;
use super::stack::Device;

/// Axes of the trainers. Experts fold dp, cp and tp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mesh {
    pub tp: usize,
    pub cp: usize,
    pub ep: usize,
    pub pp: usize,
    pub dp: usize,
}

impl Mesh {
    fn ranks(&self) -> usize {
        self.tp * self.cp * self.pp * self.dp
    }
}

/// What a trainer reaches: shares of the data sheet, and seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passes {
    /// Of the FLOP/s: products, products of experts, attention.
    pub product: f64,
    pub expert_product: f64,
    pub attention: f64,
    /// Of the links' and the network's bytes/s.
    pub link: f64,
    pub network: f64,
    /// Host seconds of a layer in a forward pass, and what the routing of a layer with experts adds that
    /// nothing hides.
    pub layer: f64,
    pub expert_layer: f64,
    /// Every rank holds a part of each weight and gathers it (ZeRO 3); share of that which nothing hides.
    pub gathers: Option<f64>,
    /// Seconds of an update, and of a forward pass over a batch, besides micro-batches.
    pub update: f64,
    pub pass: f64,
    /// Seconds of a sample in a pass where sequences are cut over ranks.
    pub cut_sequence: f64,
    /// Samples are grouped by length instead of packed; lengths are rounded up to this.
    pub rounded: Option<u32>,
}

/// All passes of one step.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    pub shape: &'a Shape,
    pub mesh: &'a Mesh,
    /// Tokens of every sample, with its prompt.
    pub tokens: &'a [u32],
    pub device: &'a Device,
    pub rates: &'a Passes,
}

impl Pass<'_> {
    /// Seconds of `updates` updates with micro-batches of `budget` tokens, products `faster` than in bf16.
    pub fn update(&self, updates: usize, budget: usize, faster: f64) -> f64 {
        let again = if self.shape.recomputes || self.rates.gathers.is_some() { 1.0 } else { 0.0 };
        let per = self.tokens.len().div_ceil(updates.max(1)).max(1);
        let batches = self.tokens.chunks(per);
        batches
            .map(|b| {
                self.batch(b, budget, 3.0 + again, true, faster) + self.step() + self.rates.update
            })
            .sum()
    }

    /// Seconds of one forward pass over all samples.
    pub fn forward(&self, budget: usize, faster: f64) -> f64 {
        self.batch(self.tokens, budget, 1.0, false, faster) + self.rates.pass
    }

    /// Seconds of one batch; `work` is a forward pass's.
    fn batch(&self, tokens: &[u32], budget: usize, work: f64, trains: bool, faster: f64) -> f64 {
        if tokens.is_empty() {
            return 0.0;
        }
        let (m, s, r) = (self.mesh, self.shape, self.rates);
        let d = &s.dims;
        let step = r.rounded.unwrap_or(1).max(1);
        let tokens: Vec<u32> = tokens.iter().map(|t| t.div_ceil(step) * step).collect();
        let bins = packed(&tokens, budget).max(m.dp).div_ceil(m.dp) * m.dp;
        let micro = (bins / m.dp) as f64;
        let sum: f64 = tokens.iter().map(|t| f64::from(*t)).sum();
        let squares: f64 = tokens.iter().map(|t| f64::from(*t).powi(2)).sum();
        let (stages, ranks) = (m.pp as f64, (m.tp * m.cp) as f64);
        let n = if m.pp > 1 { budget as f64 } else { sum / bins as f64 };
        let machine = &self.device.machine;
        let peak = machine.flops * self.device.product;
        // The head is in one stage, and is not computed again.
        let once = if trains { 3.0 } else { 1.0 };
        let every = 2.0 * (d.params - d.expert_params - d.embedding - s.head) * n / ranks / stages;
        let head = 2.0 * s.head * n / ranks;
        let mut t = (every * work + head * once) / (peak * r.product * faster);
        if let Some((number, top)) = d.experts {
            let visited = d.expert_params * top / number;
            t += 2.0 * visited * n / ranks / stages * work / (peak * r.expert_product * faster);
        }
        // Causal: half of the square of every sequence.
        let read = 2.0 * d.attention_layers * s.attention_width * squares / bins as f64 / 2.0;
        t += read / ranks / stages * work / (peak * r.attention);
        let host = d.layers / stages * r.layer * self.device.host * self.launches(work, trains);
        t = t.max(host) + self.exchange(n / m.cp as f64, work, trains);
        let routing = d.expert_layers / stages * r.expert_layer * self.device.host;
        t += routing * self.launches(work, trains);
        if let Some(seen) = r.gathers {
            t += seen * self.gathered(trains) * self.shape.dims.params / stages / m.tp as f64;
        }
        let cut = if m.cp > 1 { r.cut_sequence * tokens.len() as f64 / m.dp as f64 } else { 0.0 };
        t * (micro + stages - 1.0) + cut
    }

    /// Backward launches about as many kernels as forward, and forward again if activations are computed again.
    fn launches(&self, work: f64, trains: bool) -> f64 {
        if trains { work - 1.0 } else { 1.0 }
    }

    /// Seconds in which `n` tokens of a rank pass between ranks of tp and ep.
    fn exchange(&self, n: f64, work: f64, trains: bool) -> f64 {
        let (m, d, r) = (self.mesh, &self.shape.dims, self.rates);
        let machine = &self.device.machine;
        let times = if trains { work - 1.0 } else { 1.0 };
        let row = 2.0 * d.hidden * n;
        let mut t = 0.0;
        if m.tp > 1 {
            let part = (m.tp as f64 - 1.0) / m.tp as f64;
            // Two all-reduces of a layer, each twice its bytes.
            t += d.layers / m.pp as f64 * times * 4.0 * part * row / (machine.link * r.link);
        }
        if let Some((_, top)) = d.experts.filter(|_| m.ep > 1) {
            let domain = machine.per_node.max(1);
            let bytes = top * row / m.tp as f64 * (1.0 - 1.0 / m.ep as f64);
            let rate = if m.ep <= domain {
                machine.link * r.link
            } else {
                machine.network * r.network * m.ep as f64 / (m.ep - domain) as f64
            };
            t += d.expert_layers / m.pp as f64 * times * 2.0 * bytes / rate;
        }
        t
    }

    /// Seconds per weight of gathering it over dp for every pass, in two bytes, and of summing its gradient, in
    /// four.
    fn gathered(&self, trains: bool) -> f64 {
        let bytes = if trains { 8.0 } else { 2.0 };
        bytes * (1.0 - 1.0 / self.mesh.dp as f64) / self.between()
    }

    /// Bytes per second between ranks of dp.
    fn between(&self) -> f64 {
        let machine = &self.device.machine;
        if self.mesh.ranks() <= machine.per_node {
            machine.link * self.rates.link
        } else {
            machine.network * self.rates.network
        }
    }

    /// Seconds of summing gradients, of the optimizer and of gathering weights.
    fn step(&self) -> f64 {
        let (m, d) = (self.mesh, &self.shape.dims);
        let own = ((d.params - d.expert_params) / m.tp as f64
            + d.expert_params / m.ep.max(1) as f64)
            / m.pp as f64;
        let sent = if self.rates.gathers.is_some() { 0.0 } else { 4.0 * own };
        sent * (1.0 - 1.0 / m.dp as f64) / self.between()
            + 28.0 * d.params / self.mesh.ranks() as f64 / self.device.machine.bandwidth
    }
}

/// Bins of `budget` that first fit by falling length needs.
fn packed(tokens: &[u32], budget: usize) -> usize {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    // Room left in every bin, ascending.
    let mut room: Vec<usize> = vec![];
    for t in sorted.into_iter().rev() {
        let t = t as usize;
        let left = match room.partition_point(|r| *r < t) {
            i if i < room.len() => room.remove(i) - t,
            _ => budget.saturating_sub(t),
        };
        room.insert(room.partition_point(|r| *r < left), left);
    }
    room.len()
}

#[cfg(test)]
mod tests {
    use super::packed;

    #[test]
    fn samples_share_bins_that_have_room() {
        assert_eq!(packed(&[6, 5, 4, 5], 10), 2);
        assert_eq!(packed(&[6, 6, 6], 10), 3);
        assert_eq!(packed(&[20], 10), 1);
        assert_eq!(packed(&[], 10), 0);
    }
}
