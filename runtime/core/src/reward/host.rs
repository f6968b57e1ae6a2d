//! Rewards written in `.nrl`: a host expression per sample.
//!
//! The sample is a record: `prompt` and `completion` as text, `answer` (none if the data has none), `row` with all
//! fields of the data, `tokens` of the completion, `finished` (a stop token or text ended it).

use nrl_ir::host::{Func, Value, call};
use rayon::prelude::*;

use crate::reward::extern_::Outcome;
use crate::rollout::batch::Batch;

/// Sample `i` of a batch as rewards see it.
pub fn record(batch: &Batch, i: usize) -> Value {
    let sample = &batch.samples[i];
    let prompt = &batch.prompts[sample.prompt];
    Value::record([
        ("prompt".to_owned(), Value::text(&prompt.text)),
        ("completion".to_owned(), Value::text(&sample.text)),
        ("answer".to_owned(), prompt.answer.clone()),
        ("row".to_owned(), prompt.row.clone()),
        ("tokens".to_owned(), Value::Num(sample.ids.len() as f64)),
        ("finished".to_owned(), Value::Bool(sample.finished)),
    ])
}

/// Calls `f` on each record; outcomes in their order.
pub fn score(f: &Func, range: Option<(f64, f64)>, records: &[Value]) -> Vec<Outcome> {
    records
        .par_iter()
        .with_min_len(32)
        .map(|r| judge(call(f, std::slice::from_ref(r)), range))
        .collect()
}

fn judge(result: Result<Value, nrl_ir::host::EvalError>, range: Option<(f64, f64)>) -> Outcome {
    let x = match result {
        Err(e) => return Outcome::Failed(e.to_string()),
        Ok(Value::None) => return Outcome::Abstained,
        Ok(Value::Num(x)) => x,
        Ok(Value::Bool(b)) => f64::from(b),
        Ok(v) => return Outcome::Failed(format!("the reward is a {}, not a number", v.kind())),
    };
    match range {
        _ if !x.is_finite() => Outcome::Failed(format!("the reward is {x}, not a finite number")),
        Some((low, high)) if !(low..=high).contains(&x) => {
            Outcome::Failed(format!("the reward is {x}, outside {low}..{high}"))
        }
        _ => Outcome::Value(x),
    }
}

#[cfg(test)]
mod tests {
    use nrl_ir::host::{Builtin, Expr};

    use super::*;
    use crate::run::value::tests::batch;

    fn field(name: &str) -> Expr {
        Expr::Field { of: Box::new(Expr::Local(0)), name: name.into() }
    }

    fn func(body: Expr) -> Func {
        Func { name: "f".into(), params: 1, locals: 1, body }
    }

    /// Case c87: an empty completion is still scored.
    #[test]
    fn a_reward_sees_the_sample_as_a_record() {
        let mut b = batch(&[(2, &[0, 3])]);
        b.samples[1].text = "abc".into();
        let records: Vec<Value> = (0..2).map(|i| record(&b, i)).collect();
        let length = func(Expr::Call { f: Builtin::TextLen, args: vec![field("completion")] });
        assert_eq!(score(&length, None, &records), [Outcome::Value(0.0), Outcome::Value(3.0)]);
        assert_eq!(score(&func(field("tokens")), None, &records)[1], Outcome::Value(3.0));
        assert_eq!(score(&func(field("finished")), None, &records)[1], Outcome::Value(0.0));
    }

    /// Case c84: none abstains; what is no finite number in its range fails.
    #[test]
    fn what_is_no_number_fails() {
        let b = batch(&[(1, &[1])]);
        let records = [record(&b, 0)];
        let one = |body: Expr, range| score(&func(body), range, &records).remove(0);
        let num = |x: f64| Expr::Const(Value::Num(x));
        assert_eq!(one(Expr::Const(Value::None), None), Outcome::Abstained);
        assert_eq!(
            one(num(f64::NAN), None),
            Outcome::Failed("the reward is NaN, not a finite number".into())
        );
        assert_eq!(
            one(num(2.0), Some((0.0, 1.0))),
            Outcome::Failed("the reward is 2, outside 0..1".into())
        );
        assert_eq!(
            one(field("nothing"), None),
            Outcome::Failed("there is no field `nothing`".into())
        );
        assert_eq!(one(num(0.5), Some((0.0, 1.0))), Outcome::Value(0.5));
    }
}
