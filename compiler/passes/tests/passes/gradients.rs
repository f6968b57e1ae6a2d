//! Gradients against central differences; every choice of recomputation gives the same numbers.

use nrl_passes::{Recompute, Stage, grad, simplify};

use crate::common::*;
use crate::llama::{Config, Head, build};

#[test]
fn llama_gradients_are_finite_differences() {
    for (tied, mixer) in [(false, false), (true, false), (false, true)] {
        let c = Config { tied, mixer, ..Config::default() };
        let (g, i) = build(&c, Head::Loss);
        let mut n = Numbers(1);
        let params = weights(&g, &mut n);
        let batch = sequences(&mut n, &[(2, 3), (1, 0), (3, 4)], c.vocab);
        let bind = bind_loss(&g, &i, &batch, 7);
        let back = grad(&g, "loss", &Recompute::None).expect("differentiable");
        let (out, grads) = run(&back, &bind, &params);
        assert_close("outputs", &out, &run(&g, &bind, &params).0, 0.0);
        assert_eq!(grads.len(), params.len(), "every weight has a gradient");
        let error = finite_difference_error(&g, &bind, &params, &grads, 6);
        assert!(error < 1e-5, "{error}");
    }
}

#[test]
fn recompute_changes_nothing() {
    let c = Config::default();
    let (g, i) = build(&c, Head::Loss);
    let mut n = Numbers(2);
    let params = weights(&g, &mut n);
    let batch = sequences(&mut n, &[(2, 3), (1, 2)], c.vocab);
    let bind = bind_loss(&g, &i, &batch, 5);
    let some = Recompute::Selective(vec!["attention".into(), "contract".into()]);
    let mut runs = vec![];
    for recompute in [Recompute::None, Recompute::Full, some] {
        let mut back = grad(&g, "loss", &recompute).expect("differentiable");
        runs.push(run(&back, &bind, &params));
        simplify(&mut back, Stage::Final).expect("simplifies");
        runs.push(run(&back, &bind, &params));
    }
    for r in &runs[1..] {
        assert_close("outputs", &r.0, &runs[0].0, 1e-12);
        assert_same_grads("gradients", &r.1, &runs[0].1, 1e-12);
    }
}

/// What a layer keeps for its backward pass is what Korthikanti et al. (2022) count without dropout, for a gated
/// feed-forward block: inputs of norms and products, keys, values and queries after rotation, the result of
/// attention with one number per head, gate and up. Normalized inputs before their scale and the inside of the activation
/// are computed again.
#[test]
fn a_layer_keeps_the_operands_of_products() {
    let c = Config::default();
    let (g, _) = build(&c, Head::Loss);
    let back = grad(&g, "loss", &Recompute::None).expect("differentiable");
    let mut wide = 0;
    let mut narrow = vec![];
    for node in &back.body.nodes {
        let nrl_ir::Op::Scan { scan } = &node.op else { continue };
        if scan.reverse {
            continue;
        }
        for v in &scan.body.results[scan.carries..] {
            let fixed =
                back.dims_of(*v).iter().filter_map(|d| back.dims.size(*d)).product::<usize>();
            let of: Vec<&str> = back.dims_of(*v).iter().map(|d| back.dims.name(*d)).collect();
            if fixed > c.q {
                wide += fixed;
            } else {
                narrow.push(of.join(" "));
            }
        }
    }
    let (d, f, hd) = (c.d, c.f, c.hd);
    // Queries have a norm of their own, whose input is one more.
    assert_eq!(wide, 4 * d + hd * (3 * c.q + 2 * c.kv) + 3 * f, "{narrow:?}");
}
