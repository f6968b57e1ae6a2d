//! Clusters, pools, meshes and what is placed on them.
//!
//! A model beside the policy has a mesh of its own only where its layout differs.

use super::*;

/// Facts of a layout by name: those of the policy, or of a model beside it.
struct Layout {
    plan: &'static str,
    sp: &'static str,
    recompute: &'static str,
    offload: Option<&'static str>,
    /// Facts of axes, by the name of the axis.
    axes: [(&'static str, &'static str); 5],
}

impl Layout {
    const POLICY: Layout = Layout {
        plan: "plan",
        sp: "sp",
        recompute: "recompute",
        offload: Some("offload"),
        axes: [("pp", "pp"), ("cp", "cp"), ("tp", "tp"), ("ep", "ep"), ("etp", "etp")],
    };

    fn of(beside: &Beside) -> Layout {
        let &Beside { plan, sp, recompute, offload, axes, .. } = beside;
        Layout { plan, sp, recompute, offload, axes }
    }
}

impl Writer<'_> {
    pub(super) fn layout(&mut self) {
        let cluster = self.args(&[("nodes", "nodes"), ("gpus", "gpus")]).join(", ");
        // Nodes of four are trays of GB200; most others are nodes of H100.
        let four = self.value("gpus").is_some_and(|gpus| gpus == "4");
        let kind = if four { "gb200" } else { "h100" };
        self.line(format!(
            "gpus = clusters.{kind}({cluster})  # NeMo RL does not say which GPU: write yours"
        ));
        let pool = match (self.value("pool_nodes"), self.value("pool_gpus")) {
            _ if !self.has("roll") || !self.steps() => None,
            (Some(nodes), _) => Some(count(&nodes, "node")),
            (None, Some(gpus)) => Some(count(&gpus, "rank")),
            (None, None) => None,
        };
        let judges = self.value("judges").filter(|_| self.has("teacher"));
        let judges = judges.map(|nodes| count(&nodes, "node"));
        let parts = [("rollers", &pool), ("judges", &judges)];
        let parts = parts.into_iter().filter_map(|(name, part)| Some((name, part.as_ref()?)));
        let (names, sizes): (Vec<_>, Vec<_>) = parts.unzip();
        let trainers = if names.is_empty() { "gpus" } else { "trainers" };
        let rollers = if pool.is_some() { "rollers" } else { trainers };
        if !names.is_empty() {
            let sizes: Vec<&str> = sizes.into_iter().map(String::as_str).collect();
            let (names, sizes) = (names.join(", "), sizes.join(", "));
            self.line(format!("pool trainers, {names} = gpus split (rest, {sizes})"));
        }
        if self.has("mesh") {
            self.line(format!("mesh train = {trainers} axes ({})", self.axes(&Layout::POLICY)));
            if let Some(beside) = self.apart() {
                let axes = self.axes(&Layout::of(beside));
                let on = if judges.is_some() { "judges" } else { trainers };
                self.line(format!("mesh {} = {on} axes ({axes})", beside.mesh));
            }
        }
        if self.has("roll") && self.steps() {
            let mut sizes = vec!["rep: rest".to_string()];
            sizes.extend(self.sizes(&[("pp", "rpp"), ("rtp", "rtp"), ("ep", "rep")]));
            self.line(format!("mesh roll = {rollers} axes ({})", sizes.join(", ")));
        }
        self.gap();
    }

    /// `axis: n` of the axes that cut something.
    fn sizes(&self, axes: &[(&str, &str)]) -> Vec<String> {
        let axis = |(name, fact): &(&str, &str)| {
            int(self.facts, fact).filter(|n| *n > 1).map(|n| format!("{name}: {n}"))
        };
        axes.iter().filter_map(axis).collect()
    }

    /// The axes of a mesh that trains.
    fn axes(&self, of: &Layout) -> String {
        let first = if text(self.facts, of.plan) == Some("megatron") { "dp" } else { "fsdp" };
        // Ranks of tensor parallelism stand side by side, stages of a pipeline furthest apart (Megatron's order).
        let (stages, inner) = of.axes.split_at(1);
        let mut sizes = self.sizes(stages);
        sizes.push(format!("{first}: rest"));
        sizes.extend(self.sizes(inner));
        sizes.join(", ")
    }

    /// The model beside the policy whose layout is one of its own.
    fn apart(&self) -> Option<&'static Beside> {
        let beside = Beside::placed(self.algorithm, self.facts)?;
        let placed = self.has("plan") && self.has("mesh") && self.has("model");
        let differs = self.has("judges") || !beside.is_as_policy(self.facts);
        let own = self.has(beside.plan) && differs;
        (placed && own && self.has(beside.model)).then_some(beside)
    }

    /// Is a model beside the policy laid out as the policy is?
    fn joins(&self, model: &str) -> bool {
        if self.apart().is_some_and(|beside| beside.model == model) {
            return false;
        }
        match Beside::of(self.algorithm).filter(|b| b.model == model && self.has(b.own)) {
            Some(beside) => self.has(beside.plan) && beside.is_as_policy(self.facts),
            None => true,
        }
    }

    /// Where models are.
    pub(super) fn places(&mut self) {
        if !self.has("plan") || !self.has("mesh") || !self.has("model") {
            return;
        }
        let mut models = vec!["policy"];
        models.extend(self.refers().then_some("ref"));
        let others = Beside::ALL.map(|beside| beside.model);
        models.extend(others.into_iter().filter(|m| self.has(m) && self.joins(m)));
        let plan = self.plan(&Layout::POLICY);
        self.noted("plan", format!("place {} on train by {plan}", models.join(", ")));
        if let Some(beside) = self.apart() {
            let plan = self.plan(&Layout::of(beside));
            self.line(format!("place {} on {} by {plan}", beside.model, beside.mesh));
        }
    }

    /// The plan of a layout.
    fn plan(&self, of: &Layout) -> String {
        if text(self.facts, of.plan) != Some("megatron") {
            return self.sharded(of);
        }
        let mut args = vec![];
        if on(self.facts, of.sp) {
            args.push("sp: true".to_string());
        }
        if on(self.facts, of.recompute) {
            args.push("recompute: full".to_string());
        }
        if of.plan == "plan" {
            args.extend(self.args(&[("split", "split")]));
        }
        let away = of.offload.is_some_and(|fact| on(self.facts, fact));
        let more = if away { " * plans.offloaded()" } else { "" };
        format!("plans.megatron({}){more}", args.join(", "))
    }

    /// The layout of DTensor.
    fn sharded(&self, of: &Layout) -> String {
        let several = |name: &str| {
            let fact = of.axes.iter().find(|(axis, _)| *axis == name);
            fact.and_then(|(_, fact)| int(self.facts, fact)).is_some_and(|n| n > 1)
        };
        let mut plan = String::from("plans.fsdp() * plans.tensor_parallel()");
        for (said, more) in [
            (several("cp"), "context_parallel"),
            (several("ep"), "expert_parallel"),
            (on(self.facts, of.sp), "sequence_parallel"),
            (on(self.facts, of.recompute), "recomputed"),
        ] {
            if said {
                plan.push_str(&format!(" * plans.{more}()"));
            }
        }
        plan
    }
}
