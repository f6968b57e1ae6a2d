//! Kernels against their meaning in f64.

use nrl_ir::kernel::{Access, Instr, Kernel, Output, RowIndex};
use nrl_ir::{BinaryOp, DimId, Dims, ReduceOp, UnaryOp};

use super::{Jit, Operand, Place};
use crate::Threads;

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn number(&mut self) -> f32 {
        (self.next() % 4096) as f32 / 1024.0 - 2.0
    }
}

fn dims(lanes: usize) -> (Dims, DimId, DimId, DimId) {
    let mut d = Dims::default();
    let seq = d.add_ragged("seq", None, 100);
    let tok = d.add_ragged("tok", Some(seq), 1000);
    let l = d.add_static("l", lanes);
    (d, seq, tok, l)
}

fn unary_kernel(op: UnaryOp, tok: DimId) -> Kernel {
    Kernel {
        rows: vec![tok],
        lanes: vec![],
        inputs: vec![Access { row: RowIndex::Row { div: 1, modulo: 0 }, lanes: false }],
        code: vec![Instr::Load { input: 0 }, Instr::Unary { op, x: 0 }],
        outputs: vec![(1, Output::Store)],
        reason: String::new(),
    }
}

fn pointwise(jit: &Jit, k: &Kernel, d: &Dims, inputs: &[&[f32]]) -> Vec<f32> {
    let mut out = vec![f32::NAN; inputs[0].len()];
    let ops: Vec<Operand> = inputs.iter().map(|x| Operand { data: x, map: &[] }).collect();
    let place = Place { data: &mut out, map: &[] };
    jit.get(k, d).unwrap().run(&Threads::new(1), inputs[0].len(), &ops, &mut [place]).unwrap();
    out
}

/// Distance in units in the last place of the expected value.
fn ulps(got: f32, expected: f64) -> f64 {
    let e = expected as f32;
    if got == e || (got.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let unit = f64::from(f32::from_bits(e.abs().to_bits() + 1)) - f64::from(e.abs());
    ((f64::from(got) - expected) / unit.max(1e-45)).abs()
}

#[test]
fn functions_are_close_everywhere_and_right_at_special_values() {
    let jit = Jit::new().unwrap();
    let (d, _, tok, _) = dims(1);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-40,
        f32::MAX,
        f32::MIN,
        88.7,
        88.8,
        -87.4,
        -103.0,
        -104.5,
        0.625,
        0.5,
        9.0,
        -9.0,
    ];
    let mut xs: Vec<f32> = special.to_vec();
    let mut draw = Draw(77);
    for _ in 0..20_000 {
        xs.push(draw.number() * 45.0);
        xs.push(draw.number());
        xs.push(f32::from_bits(draw.next() as u32));
    }
    for op in UnaryOp::ALL {
        let limit = match op {
            UnaryOp::Exp | UnaryOp::Log | UnaryOp::Tanh | UnaryOp::Rsqrt => 2.0,
            UnaryOp::Sigmoid => 3.0,
            _ => 0.51,
        };
        for (x, got) in xs.iter().zip(pointwise(&jit, &unary_kernel(op, tok), &d, &[&xs])) {
            let expected = op.eval(f64::from(*x));
            // Below the normal numbers only the absolute size counts.
            let fine = ulps(got, expected) <= limit || (f64::from(got) - expected).abs() < 1.2e-38;
            assert!(fine, "{}({x:e}) = {got:e}, not {expected:e}", op.name());
        }
    }
}

#[test]
fn two_operand_functions_agree_also_on_special_values() {
    let jit = Jit::new().unwrap();
    let (d, _, tok, _) = dims(1);
    let some = [0.0, -0.0, 1.0, 2.5, -3.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-3, 7.0];
    let (mut a, mut b) = (vec![], vec![]);
    for x in some {
        for y in some {
            a.push(x);
            b.push(y);
        }
    }
    let along = Access { row: RowIndex::Row { div: 1, modulo: 0 }, lanes: false };
    for op in BinaryOp::ALL {
        let mut k = unary_kernel(UnaryOp::Neg, tok);
        k.inputs = vec![along.clone(), along.clone()];
        k.code = vec![
            Instr::Load { input: 0 },
            Instr::Load { input: 1 },
            Instr::Binary { op, a: 0, b: 1 },
        ];
        k.outputs = vec![(2, Output::Store)];
        for (i, got) in pointwise(&jit, &k, &d, &[&a, &b]).into_iter().enumerate() {
            let expected = op.eval(f64::from(a[i]), f64::from(b[i]));
            assert!(
                ulps(got, expected) <= 0.51,
                "{}({}, {}) = {got}, not {expected}",
                op.name(),
                a[i],
                b[i]
            );
        }
    }
}

#[test]
fn select_takes_one_side_and_bf16_rounds_to_even() {
    let jit = Jit::new().unwrap();
    let (d, _, tok, _) = dims(1);
    let along = Access { row: RowIndex::Row { div: 1, modulo: 0 }, lanes: false };
    let mut k = unary_kernel(UnaryOp::Neg, tok);
    k.inputs = vec![along.clone(), along.clone(), along.clone()];
    k.code = vec![
        Instr::Load { input: 0 },
        Instr::Load { input: 1 },
        Instr::Load { input: 2 },
        Instr::Select { cond: 0, a: 1, b: 2 },
    ];
    k.outputs = vec![(3, Output::Store)];
    let got = pointwise(
        &jit,
        &k,
        &d,
        &[
            &[0.0, 1.0, f32::NAN, -0.0, -2.0],
            &[f32::NAN, 1.0, 2.0, 3.0, 4.0],
            &[5.0, f32::NAN, 7.0, 8.0, 9.0],
        ],
    );
    assert_eq!(got, [5.0, 1.0, 2.0, 8.0, 4.0]);
    k.inputs.truncate(1);
    k.code = vec![Instr::Load { input: 0 }, Instr::RoundBf16 { x: 0 }];
    k.outputs = vec![(1, Output::Store)];
    // Halfway cases by hand: 1 + 2^-8 goes to 1, 1 + 3 * 2^-8 to 1 + 2^-6.
    let got = pointwise(
        &jit,
        &k,
        &d,
        &[&[1.003_906_3, 1.011_718_8, -1.007_812_5, 3.4e38, f32::INFINITY, f32::NAN, 1e-40]],
    );
    assert_eq!(got[..5], [1.0, 1.015_625, -1.007_812_5, f32::INFINITY, f32::INFINITY]);
    // The smallest bf16 is 2^-133.
    assert!(got[5].is_nan() && got[6] == 9.183_55e-41);
}

/// Per row of lanes, the kernel's meaning.
fn meaning(
    k: &Kernel,
    lanes: usize,
    rows: usize,
    inputs: &[Vec<f32>],
    map: &[u32],
) -> Vec<Vec<f64>> {
    let mut values: Vec<Vec<f64>> = vec![];
    let mut kept: Vec<Vec<f64>> = k.outputs.iter().map(|_| vec![]).collect();
    for row in 0..rows {
        values.clear();
        for instr in &k.code {
            let get = |i: &usize, l: usize| values[*i][l];
            let v: Vec<f64> = (0..lanes)
                .map(|l| match instr {
                    Instr::Load { input } => {
                        let a = &k.inputs[*input];
                        let item = match a.row {
                            RowIndex::None => 0,
                            RowIndex::Row { div, modulo: 0 } => row / div,
                            RowIndex::Row { div, modulo } => row / div % modulo,
                            RowIndex::Segment { div, .. } => map[row / div] as usize,
                        };
                        f64::from(if a.lanes {
                            inputs[*input][item * lanes + l]
                        } else {
                            inputs[*input][item]
                        })
                    }
                    Instr::Const { value } => *value,
                    Instr::Unary { op, x } => op.eval(get(x, l)),
                    Instr::Binary { op, a, b } => op.eval(get(a, l), get(b, l)),
                    Instr::Select { cond, a, b } => {
                        if get(cond, l) != 0.0 {
                            get(a, l)
                        } else {
                            get(b, l)
                        }
                    }
                    Instr::RoundBf16 { x } => get(x, l),
                    Instr::Lanes { op: ReduceOp::Sum, x } => values[*x].iter().sum(),
                    Instr::Lanes { op: ReduceOp::Max, x } => {
                        values[*x].iter().copied().fold(f64::NEG_INFINITY, f64::max)
                    }
                })
                .collect();
            values.push(v);
        }
        for (o, (id, how)) in k.outputs.iter().enumerate() {
            let lane = k.is_lane(*id);
            let v = &values[*id][..if lane { lanes } else { 1 }];
            match how {
                Output::Store => kept[o].extend(v),
                Output::SumRows => {
                    kept[o].resize(v.len(), 0.0);
                    kept[o].iter_mut().zip(v).for_each(|(a, b)| *a += b);
                }
                Output::SumSegments { .. } => {
                    kept[o].resize(map.iter().max().map_or(0, |m| *m as usize + 1), 0.0);
                    kept[o][map[row] as usize] += v[0];
                }
            }
        }
    }
    kept
}

fn random_kernel(draw: &mut Draw, lanes: usize, l: DimId, tok: DimId, seq: DimId) -> Kernel {
    let mut inputs = vec![Access { row: RowIndex::Row { div: 1, modulo: 0 }, lanes: true }];
    for _ in 0..1 + draw.below(3) {
        let row = match draw.below(5) {
            0 => RowIndex::None,
            1 => RowIndex::Row { div: 1, modulo: 0 },
            2 => RowIndex::Row { div: 3, modulo: 0 },
            3 => RowIndex::Row { div: 2, modulo: 5 },
            _ => RowIndex::Segment { div: 1, of: tok, owner: seq },
        };
        inputs.push(Access { row, lanes: draw.below(2) == 0 && lanes > 1 });
    }
    if lanes == 1 {
        inputs.iter_mut().for_each(|a| a.lanes = false);
    }
    let mut code: Vec<Instr> = (0..inputs.len()).map(|input| Instr::Load { input }).collect();
    code.push(Instr::Const { value: 0.75 });
    for _ in 0..3 + draw.below(10) {
        let n = code.len();
        let (a, b, x) = (draw.below(n), draw.below(n), draw.below(n));
        code.push(match draw.below(8) {
            0 => Instr::Binary { op: BinaryOp::Add, a, b },
            1 => Instr::Binary { op: BinaryOp::Mul, a, b },
            2 => Instr::Binary { op: BinaryOp::Max, a, b },
            3 => Instr::Unary { op: UnaryOp::Tanh, x },
            4 => Instr::Unary { op: UnaryOp::Sigmoid, x },
            5 => Instr::Lanes { op: ReduceOp::Sum, x },
            6 => Instr::Lanes { op: ReduceOp::Max, x },
            _ => Instr::Select { cond: x, a, b },
        });
    }
    let mut outputs = vec![(code.len() - 1, Output::Store), (code.len() - 2, Output::SumRows)];
    let mut k = Kernel {
        rows: vec![tok],
        lanes: if lanes > 1 { vec![l] } else { vec![] },
        inputs,
        code,
        outputs: vec![],
        reason: String::new(),
    };
    if let Some(i) = (0..k.code.len()).rev().find(|i| !k.is_lane(*i)) {
        outputs.push((i, Output::SumSegments { of: tok, owner: seq }));
    }
    k.outputs = outputs;
    k
}

#[test]
fn random_kernels_agree_with_f64_and_do_not_depend_on_threads() {
    let jit = Jit::new().unwrap();
    let (one, two) = (Threads::new(1), Threads::new(2));
    let mut draw = Draw(4242);
    for round in 0..120 {
        let lanes = [1, 3, 8, 17, 24, 96][draw.below(6)];
        let rows = [0, 1, 5, 64, 131, 700][draw.below(6)];
        let (d, seq, tok, l) = dims(lanes);
        let k = random_kernel(&mut draw, lanes, l, tok, seq);
        let map: Vec<u32> = (0..rows as u32).map(|r| r / 7).collect();
        let inputs: Vec<Vec<f32>> = k
            .inputs
            .iter()
            .map(|_| (0..(rows + 8) * lanes).map(|_| draw.number()).collect())
            .collect();
        let expected = meaning(&k, lanes, rows, &inputs, &map);
        let ops: Vec<Operand> = inputs.iter().map(|x| Operand { data: x, map: &map }).collect();
        let code = jit.get(&k, &d).unwrap();
        let mut both = vec![];
        for threads in [&one, &two] {
            let mut outs: Vec<Vec<f32>> = (0..k.outputs.len())
                .map(|o| vec![f32::NAN; code.length(o, rows).unwrap_or(rows.div_ceil(7))])
                .collect();
            let mut places: Vec<Place> =
                outs.iter_mut().map(|o| Place { data: o, map: &map }).collect();
            code.run(threads, rows, &ops, &mut places).unwrap();
            both.push(outs);
        }
        for (o, want) in expected.iter().enumerate() {
            for (i, w) in want.iter().enumerate() {
                let got = f64::from(both[0][o][i]);
                // Selections may flip on a rounding; those differences are as large as the operands.
                let flips = k.code.iter().any(|c| matches!(c, Instr::Select { .. }));
                let size =
                    1.0 + w.abs() + if *o_kind(&k, o) == Output::Store { 0.0 } else { rows as f64 };
                assert!(
                    (got - w).abs() < 3e-4 * size * lanes as f64
                        || flips
                        || w.abs() > 1e30
                        || w.is_nan(),
                    "round {round}: {got} for {w}\n{k:?}"
                );
            }
        }
        let bits = |o: &Vec<Vec<f32>>| o.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&both[0]), bits(&both[1]), "round {round}");
    }
}

fn o_kind(k: &Kernel, o: usize) -> &Output {
    &k.outputs[o].1
}

#[test]
fn code_is_shared_by_all_numbers_of_rows_and_short_operands_are_refused() {
    let jit = Jit::new().unwrap();
    let (d, _, tok, _) = dims(1);
    let k = unary_kernel(UnaryOp::Exp, tok);
    for n in [1, 10, 33] {
        assert_eq!(pointwise(&jit, &k, &d, &[&vec![0.0; n]]), vec![1.0; n]);
    }
    assert_eq!(jit.kernels(), 1);
    let mut out = [0.0; 3];
    let place = Place { data: &mut out, map: &[] };
    let short = jit.get(&k, &d).unwrap().run(
        &Threads::new(1),
        4,
        &[Operand { data: &[0.0; 4], map: &[] }],
        &mut [place],
    );
    assert!(short.unwrap_err().contains("room for 3 numbers, 4 are needed"));
}
