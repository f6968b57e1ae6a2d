//! What may be tried as a function of its own, and what is refused.

use crate::support::{Batch, graph, refusal, run};

#[test]
fn parts_of_a_tuple_are_outputs() {
    let g = graph(
        "fn both(x: f32[tok], y: f32[group], z: f32, twice: float = 2.0) = (twice * sum(x, over: tok) + y, z, mean(x, over: groups))",
        "both",
        &[],
    );
    let batch = Batch { groups: vec![2, 1], tokens: vec![1, 2, 0] };
    let values = [("x", vec![1.0, 2.0, 3.0]), ("y", vec![10.0, 20.0]), ("z", vec![5.0])];
    let got = run(&g, &batch, &values);
    assert_eq!(got.outputs["out.0"], [12.0, 20.0, 20.0]);
    assert_eq!(got.outputs["out.1"], [5.0]);
    // Token means 1, 2.5 and 0 over two groups.
    assert_eq!(got.outputs["loss"], [1.75]);
}

#[test]
fn functions_of_the_prelude_and_imports_can_be_tried() {
    let g = graph("use std.grpo.{advantages}\n", "advantages", &[]);
    let got = run(&g, &Batch::of(&[1, 1]), &[("r", vec![1.0, 0.0])]);
    assert_eq!(got.outputs["out"], [1.0, -1.0]);
    let g = graph("use std.grpo\n", "ratio", &[]);
    let got = run(&g, &Batch::of(&[1]), &[("new", vec![-1.0]), ("old", vec![-1.0])]);
    assert_eq!(got.outputs["out"], [1.0]);
}

#[test]
fn what_cannot_be_tried_says_why() {
    let one = |text: &str, name: &str, trained: &[&str]| {
        let found = refusal(text, name, trained);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let text = "fn twice(x: f32[tok]) -> f32[tok] = 2.0 * x\n";
    let found = one(text, "twise", &[]);
    assert!(found.contains("there is no `twise`") && found.contains("twice"), "{found}");
    let found = one(text, "twice", &["y"]);
    assert!(found.contains("no parameter `y` to train"), "{found}");
    let found = one("fn f(m: Model) = 1.0\n", "f", &[]);
    assert!(found.contains("`m` is no tensor"), "{found}");
    let found = one("fn f(x: f32[tok]) -> f32[seq] = x\n", "f", &[]);
    assert!(found.starts_with("dim-mismatch"), "{found}");
    let found = one("enum E { a, b }\n", "E", &[]);
    assert!(found.contains("not a function"), "{found}");
    assert!(!refusal("fn f(x: f32[tok] = \n", "f", &[]).is_empty());
}
