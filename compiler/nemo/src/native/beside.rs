//! Layouts of models beside the policy: the teacher of distillation and the critic of PPO.
//!
//! In: settings whose section of such a model (`teacher`, `value`) names a backend of its own, or lines that give the model
//! a mesh and a place of its own. Out: facts whose names begin with the model's, and the settings that they mean.
//! A section without a backend takes that of the policy, and so does a model on the policy's mesh.

use nrl_rules::settings::{Node, Value};

use super::table::{Row, layout};
use super::{Algorithm, Facts, hosts, same, text};

/// A model beside the policy, with the names of its facts.
pub(crate) struct Beside {
    /// The name that lines have for it.
    pub model: &'static str,
    /// The name of its mesh.
    pub mesh: &'static str,
    section: &'static str,
    /// That its section has a backend of its own.
    pub own: &'static str,
    /// The backend; that the model has a layout of its own.
    pub plan: &'static str,
    pub sp: &'static str,
    pub recompute: &'static str,
    /// That its optimizer is on hosts, where it has one.
    pub offload: Option<&'static str>,
    /// Facts of axes, by the name of the axis.
    pub axes: [(&'static str, &'static str); 5],
}

const TEACHER: Beside = Beside {
    model: "teacher",
    mesh: "on_teacher",
    section: "teacher",
    own: "teacher_own",
    plan: "teacher_plan",
    sp: "teacher_sp",
    recompute: "teacher_recompute",
    offload: None,
    axes: [
        ("pp", "teacher_pp"),
        ("cp", "teacher_cp"),
        ("tp", "teacher_tp"),
        ("ep", "teacher_ep"),
        ("etp", "teacher_etp"),
    ],
};

const CRITIC: Beside = Beside {
    model: "critic",
    mesh: "on_critic",
    section: "value",
    own: "critic_own",
    plan: "critic_plan",
    sp: "critic_sp",
    recompute: "critic_recompute",
    offload: Some("critic_offload"),
    axes: [
        ("pp", "critic_pp"),
        ("cp", "critic_cp"),
        ("tp", "critic_tp"),
        ("ep", "critic_ep"),
        ("etp", "critic_etp"),
    ],
};

impl Beside {
    /// All of them.
    pub const ALL: [&'static Beside; 2] = [&TEACHER, &CRITIC];

    /// The one that facts give a place of its own.
    pub fn placed(algorithm: Algorithm, facts: &Facts) -> Option<&'static Beside> {
        let judges = facts.contains_key("judges").then_some(&TEACHER);
        judges.or_else(|| Beside::of(algorithm))
    }

    /// The one of an algorithm.
    pub fn of(algorithm: Algorithm) -> Option<&'static Beside> {
        match algorithm {
            Algorithm::Distillation => Some(&TEACHER),
            Algorithm::Ppo => Some(&CRITIC),
            _ => None,
        }
    }

    /// The backend that the section turns on, if it has one of its own.
    fn megatron(&self, root: &Node) -> Option<bool> {
        let at = |key: &str| root.get(&format!("{}.{key}", self.section));
        at("megatron_cfg").or(at("dtensor_cfg"))?;
        let on = at("megatron_cfg.enabled").is_some_and(|n| n.value == Value::Bool(true));
        Some(on)
    }

    /// Where the facts of the layout stand.
    fn rows(&self, megatron: bool) -> Vec<Row> {
        let own = |policy: &str| self.pairs().into_iter().find(|(_, p)| *p == policy);
        let own = |row: Row| own(row.fact).map(|(fact, _)| Row { fact, line: self.plan, ..row });
        layout(self.section, megatron).into_iter().filter_map(own).collect()
    }

    /// Rows of the layout that facts or the settings below name; none where the section has no backend.
    pub(super) fn known(&self, facts: &Facts, below: &Node) -> Vec<Row> {
        match (text(facts, self.plan), self.megatron(below)) {
            (Some(plan), Some(_)) => self.rows(plan == "megatron"),
            _ => vec![],
        }
    }

    /// The facts of the layout.
    pub(super) fn take(&self, root: &Node, facts: &mut Facts) {
        let Some(megatron) = self.megatron(root) else { return };
        facts.insert(self.own, Value::Bool(true));
        let plan = if megatron { "megatron" } else { "fsdp" };
        facts.insert(self.plan, Value::Text(plan.into()));
        for row in self.rows(megatron) {
            match root.get(&row.path).map(|n| &n.value) {
                Some(Value::Int(n)) if *n > 0 => facts.insert(row.fact, Value::Int(*n)),
                Some(Value::Bool(flag)) => facts.insert(row.fact, Value::Bool(*flag)),
                _ => None,
            };
        }
        if let Some(fact) = self.offload.filter(|_| megatron && hosts::whole(root, self.section)) {
            facts.insert(fact, Value::Bool(true));
        }
    }

    /// Which backend is on, and whether its optimizer is on hosts.
    pub(super) fn backend(
        &self,
        facts: &Facts,
        below: &Node,
        put: &mut impl FnMut(&'static str, &str, Value),
    ) {
        let (Some(plan), Some(_)) = (text(facts, self.plan), self.megatron(below)) else { return };
        let on_megatron = plan == "megatron";
        for (key, is) in [("megatron_cfg", on_megatron), ("dtensor_cfg", !on_megatron)] {
            let path = format!("{}.{key}.enabled", self.section);
            if below.get(&path).is_some() || is {
                put(self.plan, &path, Value::Bool(is));
            }
        }
        if let Some(fact) = self.offload.filter(|_| on_megatron) {
            hosts::edits(facts, below, self.section, (fact, self.plan), put);
        }
    }

    /// Says of the model what facts say of the policy's layout.
    pub(crate) fn as_policy(&self, facts: &mut Facts) {
        for (own, policy) in self.pairs() {
            if let Some(value) = facts.get(policy).cloned() {
                facts.insert(own, value);
            }
        }
    }

    /// Whether the model is laid out as the policy is.
    pub(crate) fn is_as_policy(&self, facts: &Facts) -> bool {
        let usual = |value: &Value| matches!(value, Value::Int(1) | Value::Bool(false));
        let said = |fact: &str| facts.get(fact).filter(|value| !usual(value));
        let alike = |(own, policy): (&str, &str)| match (said(own), said(policy)) {
            (None, None) => true,
            (Some(a), Some(b)) => same(a, b),
            _ => false,
        };
        !facts.contains_key("split") && self.pairs().into_iter().all(alike)
    }

    /// Facts of the layout beside those of the policy's.
    fn pairs(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = vec![(self.plan, "plan"), (self.sp, "sp"), (self.recompute, "recompute")];
        all.extend(self.offload.map(|fact| (fact, "offload")));
        all.extend(self.axes.iter().map(|(axis, fact)| (*fact, *axis)));
        all
    }
}
