//! The `settings` block: paths and plain values.

use nrl_grammar::Rule;
use pest::iterators::Pair;

use super::{Build, Kids};
use crate::ast::*;
use crate::errors::Place;

impl Build<'_> {
    pub(super) fn settings(&mut self, pair: Pair<'_, Rule>) -> Option<Settings> {
        let mut kids = Kids::of(pair);
        let system = self.name(&kids.next()?);
        let over = kids.pick(Rule::over_text).and_then(|over| Kids::of(over).next());
        let over = over.map(|text| self.text(&text));
        let mut lines = vec![];
        for line in kids {
            if line.as_rule() == Rule::bad_line {
                self.bad_line(&line, Place::Setting);
            } else {
                lines.extend(self.setting(line));
            }
        }
        Some(Settings { system, over, lines })
    }

    fn setting(&mut self, pair: Pair<'_, Rule>) -> Option<Setting> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let path = Kids::of(kids.next()?).map(|key| self.setting_key(key));
        let path = path.collect::<Option<Vec<_>>>()?;
        let value = match kids.next() {
            Some(value) => Some(self.setting_value(value)?),
            None => None,
        };
        Some(Setting { path, value, span })
    }

    fn setting_key(&mut self, pair: Pair<'_, Rule>) -> Option<Name> {
        let key = Kids::of(pair).next()?;
        Some(match key.as_rule() {
            Rule::text => {
                let text = self.text(&key);
                Name { text: text.value, span: text.span }
            }
            _ => self.name(&key),
        })
    }

    fn setting_value(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let negative = kids.pick(Rule::neg_op).is_some();
        let value = kids.next()?;
        let kind = match value.as_rule() {
            Rule::setting_list => ExprKind::List(
                Kids::of(value).map(|item| self.setting_value(item)).collect::<Option<_>>()?,
            ),
            Rule::setting_map => ExprKind::Record(
                Kids::of(value).map(|entry| self.setting_entry(entry)).collect::<Option<_>>()?,
            ),
            _ => self.operand(value)?.kind,
        };
        let kind = match kind {
            ExprKind::Int(n) if negative => ExprKind::Int(-n),
            ExprKind::Float(x) if negative => ExprKind::Float(-x),
            kind => kind,
        };
        Some(Expr { kind, span })
    }

    fn setting_entry(&mut self, pair: Pair<'_, Rule>) -> Option<RecordValue> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let name = self.setting_key(kids.next()?)?;
        Some(RecordValue { name, value: self.setting_value(kids.next()?)?, span })
    }
}
