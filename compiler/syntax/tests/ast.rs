//! Trees of small texts: precedence, spans, and the parts of statements.

use nrl_base::{Diagnostic, SourceId};
use nrl_syntax::ast::*;
use nrl_syntax::{parse, parse_expr, parse_override, parse_type};

const HERE: SourceId = SourceId(0);

/// An expression with all its brackets.
fn shape(text: &str) -> String {
    match parse_expr(HERE, text) {
        Ok(expr) => show(&expr),
        Err(found) => panic!("{text}: {found:#?}"),
    }
}

fn show(expr: &Expr) -> String {
    let list = |items: &[Expr]| items.iter().map(show).collect::<Vec<_>>().join(", ");
    let opt = |e: &Option<Box<Expr>>| e.as_ref().map(|e| show(e)).unwrap_or_default();
    let args = |args: &[Arg]| {
        let arg = |a: &Arg| match &a.name {
            Some(name) => format!("{}: {}", name.text, show(&a.value)),
            None => show(&a.value),
        };
        args.iter().map(arg).collect::<Vec<_>>().join(", ")
    };
    match &expr.kind {
        ExprKind::Int(n) => n.to_string(),
        ExprKind::Float(x) => format!("{x:?}"),
        ExprKind::Quantity(q) => {
            let unit = q.unit.iter().map(|f| format!("{}^{}", f.name.text, f.power));
            format!("<{} {}>", q.text, unit.collect::<Vec<_>>().join(" "))
        }
        ExprKind::Text(text) => format!("{text:?}"),
        ExprKind::Bool(b) => b.to_string(),
        ExprKind::None => "none".into(),
        ExprKind::Name(name) => name.clone(),
        ExprKind::Some(e) => format!("(some {})", show(e)),
        ExprKind::List(items) => format!("[{}]", list(items)),
        ExprKind::Tuple(items) => format!("tuple({})", list(items)),
        ExprKind::Call { callee, args: a } => format!("{}({})", show(callee), args(a)),
        ExprKind::Field { base, name } => format!("{}.{}", show(base), name.text),
        ExprKind::Index { base, items } => {
            let item = |i: &IndexItem| match i {
                IndexItem::Expr(e) => show(e),
                IndexItem::All(_) => "*".into(),
                IndexItem::Rename { from, to, .. } => format!("{}->{}", from.text, to.text),
            };
            format!("{}[{}]", show(base), items.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        ExprKind::Unary { op, operand } => format!("({op:?} {})", show(operand)),
        ExprKind::Binary { op, lhs, rhs, .. } => {
            format!("({} {} {})", show(lhs), op.text(), show(rhs))
        }
        ExprKind::Range { start, end, inclusive } => {
            format!("({}{}{})", opt(start), if *inclusive { "..=" } else { ".." }, opt(end))
        }
        ExprKind::If { cond, then, otherwise } => {
            format!("(if {} then {} else {})", show(cond), show(then), opt(otherwise))
        }
        ExprKind::Pipe { input, stage } => format!("({} | {})", show(input), show(stage)),
        ExprKind::From { base, source } => format!("({} from {})", show(base), show(source)),
        ExprKind::With { base, args: a } => format!("({} with {})", show(base), args(a)),
        ExprKind::Lambda { params, body } => {
            let names: Vec<_> = params.iter().map(|p| p.text.as_str()).collect();
            format!("({} -> {})", names.join(" "), show(body))
        }
        ExprKind::Rest => "rest".into(),
        ExprKind::Of { part, whole } => format!("({} of {})", show(part), show(whole)),
        other => format!("{other:?}"),
    }
}

#[test]
fn precedence() {
    let cases = [
        ("1 + 2 * 3", "(1 + (2 * 3))"),
        ("1 - 2 - 3", "((1 - 2) - 3)"),
        ("a @ b * c", "((a @ b) * c)"),
        ("-x ^ 2", "(Neg (x ^ 2))"),
        ("2 ^ 3 ^ 2", "(2 ^ (3 ^ 2))"),
        ("-a.b(c)", "(Neg a.b(c))"),
        ("not a == b and c", "((Not (a == b)) and c)"),
        ("a or b and c", "(a or (b and c))"),
        ("a + 1..b", "((a + 1)..b)"),
        ("-1..1", "((Neg 1)..1)"),
        ("0..1 to -1..1", "((0..1) to ((Neg 1)..1))"),
        ("1..=6", "(1..=6)"),
        ("a < b + 1", "(a < (b + 1))"),
        ("x in 0..1", "(x in (0..1))"),
        ("d % tp == 0", "((d % tp) == 0)"),
        ("7 % 2", "(7 % 2)"),
        ("a | f(1) | g", "((a | f(1)) | g)"),
        ("p from \"x\" | s", "((p from \"x\") | s)"),
        ("some a.b", "(some a.b)"),
        ("x -> x + 1", "(x -> (x + 1))"),
        ("(a, b) -> a", "(a b -> a)"),
        ("(a)", "a"),
        ("(a,)", "tuple(a)"),
        ("()", "tuple()"),
        ("kl(t, dist(s) on t)", "kl(t, (dist(s) on t))"),
        ("if a then b else c + 1", "(if a then b else (c + 1))"),
        ("w[d -> e][*, 0..4, 2..]", "w[d->e][*, (0..4), (2..)]"),
        ("s with (temperature: 0)", "(s with temperature: 0)"),
        ("f(from: 1, else: drop)", "f(from: 1, else: drop)"),
    ];
    for (text, want) in cases {
        assert_eq!(shape(text), want, "{text}");
    }
}

#[test]
fn quantities() {
    let cases = [
        ("8192 tokens/microbatch", "<8192 tokens^1 microbatch^-1>"),
        ("60 % of device", "(<60 %^1> of device)"),
        ("rest of context", "(rest of context)"),
        ("95 %", "<95 %^1>"),
        ("f(2 %)", "f(<2 %^1>)"),
        ("2.5 h + 1 h", "(<2.5 h^1> + <1 h^1>)"),
        ("76GB", "<76 GB^1>"),
        ("1_000 tokens", "<1_000 tokens^1>"),
        ("8192 tokens / 4", "(<8192 tokens^1> / 4)"),
        ("3 with (a: 1)", "(3 with a: 1)"),
        ("5e-7", "5e-7"),
    ];
    for (text, want) in cases {
        assert_eq!(shape(text), want, "{text}");
    }
    let Ok(Expr { kind: ExprKind::Quantity(q), .. }) = parse_expr(HERE, "1_000.5 s") else {
        panic!("a quantity")
    };
    assert_eq!((q.value, q.whole, q.text.as_str()), (1000.5, false, "1_000.5"));
}

fn body(text: &str) -> Block {
    let (file, found) = parse(HERE, &format!("recipe r {{\n{text}\n}}\n"));
    assert!(found.is_empty(), "{found:#?}");
    match file.items.into_iter().next().map(|item| item.kind) {
        Some(ItemKind::Recipe(recipe)) => recipe.body,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lines_end_at_breaks_that_nothing_carries_over() {
    let block =
        body("a = f(\n  1,\n  2\n)\nb = x\n  | y\n  + 1\nc =\n  3; d = 4\ne = 1 +  # why\n  2\n-f");
    assert_eq!(block.stmts.len(), 5);
    assert_eq!(block.value.map(|v| show(&v)).as_deref(), Some("(Neg f)"));
}

#[test]
fn update_parts_are_sorted_by_what_they_count() {
    let block = body(
        "update p by o in 2 updates, 4 epochs, 8192 tokens/microbatch, clip: 1, minimizing { l }",
    );
    let StmtKind::Update(update) = &block.stmts[0].kind else { panic!("{block:?}") };
    let shown = |e: &Option<Expr>| e.as_ref().map(show);
    assert_eq!(shown(&update.updates).as_deref(), Some("<2 updates^1>"));
    assert_eq!(shown(&update.epochs).as_deref(), Some("<4 epochs^1>"));
    assert_eq!(shown(&update.microbatch).as_deref(), Some("<8192 tokens^1 microbatch^-1>"));
    assert_eq!(update.settings.len(), 1);
    assert_eq!(update.loss.value.as_ref().map(|v| show(v)).as_deref(), Some("l"));
}

#[test]
fn words_of_statements_are_names_elsewhere() {
    let block = body(
        "step = 1\nrun = step + every.test\nfrom = phase(step, from: 2)\nmesh = model\ntest, set = f(at)\nscan(x)",
    );
    assert_eq!(block.stmts.len(), 5);
    assert!(block.stmts.iter().all(|stmt| matches!(stmt.kind, StmtKind::Bind(_))));
}

#[test]
fn run_checkpoint_and_halt_have_their_parts() {
    let block = body(
        "run 5 steps within 3 h, seed 4\ncheckpoint keep 3 by t.acc, and the latest\ncheckpoint\nhalt when a > 95 % for 5 steps\npublish p every 2 steps",
    );
    let StmtKind::Run(run) = &block.stmts[0].kind else { panic!() };
    assert_eq!(run.seed.as_ref().map(show).as_deref(), Some("4"));
    assert_eq!(run.within.as_ref().map(show).as_deref(), Some("<3 h^1>"));
    let StmtKind::Checkpoint(keep) = &block.stmts[1].kind else { panic!() };
    assert!(keep.latest && keep.keep.is_some() && keep.by.is_some());
    let StmtKind::Checkpoint(bare) = &block.stmts[2].kind else { panic!() };
    assert!(!bare.latest && bare.keep.is_none());
    let StmtKind::Halt(halt) = &block.stmts[3].kind else { panic!() };
    assert_eq!(show(&halt.cond), "(a > <95 %^1>)");
    assert_eq!(halt.lasting.as_ref().map(show).as_deref(), Some("<5 steps^1>"));
}

#[test]
fn doc_comments_belong_to_what_follows_them() {
    let text = "## For nobody.\n\n## About f,\n## in two lines.\nfn f() = 1\n# plain\nrecord R {\n  ## A field.\n  a: int\n}\n";
    let (file, _) = parse(HERE, text);
    assert_eq!(file.items[0].doc.as_deref(), Some("About f,\nin two lines."));
    assert_eq!(file.items[1].doc, None);
    let ItemKind::Record(record) = &file.items[1].kind else { panic!() };
    assert_eq!(record.fields[0].doc.as_deref(), Some("A field."));
}

#[test]
fn spans_cover_the_text_and_no_blanks() {
    let text = "x = f(a)   # c\nrecipe r { \n y = 1 + 2  \n}\n";
    let (file, _) = parse(HERE, text);
    assert_eq!(&text[file.items[0].span.range()], "x = f(a)");
    let ItemKind::Recipe(recipe) = &file.items[1].kind else { panic!() };
    assert_eq!(&text[recipe.body.stmts[0].span.range()], "y = 1 + 2");
    assert_eq!(&text[recipe.body.span.range()], "{ \n y = 1 + 2  \n}");
    assert_eq!(&text[recipe.name.span.range()], "r");
}

#[test]
fn a_tie_and_a_condition_are_told_apart() {
    let text = "model m {\n param a: [d] from \"x\" or b if c\n param e: [d] from \"x\" if c\n param f: [d] from \"x\" or b if c if g\n}";
    let (file, found) = parse(HERE, text);
    assert!(found.is_empty(), "{found:?}");
    let ItemKind::Model(model) = &file.items[0].kind else { panic!() };
    let has = |at: usize| match &model.members[at].kind {
        MemberKind::Param(p) => (p.or.as_ref().map(|t| t.cond.is_some()), p.cond.is_some()),
        other => panic!("{other:?}"),
    };
    assert_eq!(has(0), (Some(true), false));
    assert_eq!(has(1), (None, true));
    assert_eq!(has(2), (Some(true), true));
}

#[test]
fn types() {
    let good = [
        "f32[tok@dp, d]",
        "id(vocab)[tok]",
        "float in 0..1",
        "float in -1.5..=1",
        "int?",
        "list(text)?",
        "(A, B?)",
        "text at most 1024 tokens",
        "f32[d] pending sum(tp, dp)",
        "pending sum(tp)",
        "fn(int) -> bool",
        "std.data.Pairs",
        "f32[]",
        "bf16[2 * half, q // 2]",
    ];
    for text in good {
        assert!(parse_type(HERE, text).is_ok(), "{text}");
    }
    for text in ["f32[", "list(", "int int", "", "float in 0"] {
        assert!(parse_type(HERE, text).is_err(), "{text}");
    }
    let Ok(Type { kind: TypeKind::Tensor { dims, .. }, .. }) =
        parse_type(HERE, "f32[tok@dp@cp, d]")
    else {
        panic!("a tensor")
    };
    assert_eq!(dims[0].axes.len(), 2);
}

#[test]
fn overrides_are_a_path_and_a_value() {
    let Ok((path, value)) = parse_override(HERE, "step.s.max_new=512 tokens") else { panic!() };
    assert_eq!((show(&path).as_str(), show(&value).as_str()), ("step.s.max_new", "<512 tokens^1>"));
    for text in ["a", "=3", "a=", "a==3", "a=1 2", "", "a b=3"] {
        let found = parse_override(HERE, text).expect_err(text);
        assert!(found.iter().all(|d| d.is_error() && d.span().is_some()), "{text}: {found:?}");
    }
}

#[test]
fn texts_and_escapes() {
    assert_eq!(shape(r#""a\n\t\\\"\u{e9}""#), format!("{:?}", "a\n\t\\\"é"));
    assert_eq!(shape(r#"r"\d+\.""#), format!("{:?}", r"\d+\."));
    assert_eq!(shape("\"# not a comment {\""), format!("{:?}", "# not a comment {"));
    let code = |text: &str| parse_expr(HERE, text).expect_err(text).remove(0).code;
    assert_eq!(code(r#""\d""#), "bad-escape");
    assert_eq!(code(r#""\u{110000}""#), "bad-escape");
    assert_eq!(code("\"a"), "unterminated-text");
    assert_eq!(code("99999999999999999999"), "bad-number");
    assert_eq!(code("1e999"), "bad-number");
}

#[test]
fn no_message_shows_a_rule_of_the_grammar() {
    let texts = [
        "recipe",
        "recipe r",
        "fn f(",
        "x =",
        "x = f(1 2)",
        "use 3",
        "model m { param }",
        "plan p { a }",
        "mesh m = g",
        "recipe r { run 5 6 }",
        "recipe r { update p }",
        "enum E { 3 }",
        "record R { a }",
        "extern fn f() -> int",
        "view v of",
        "x: = 3",
        "a.b = 3",
    ];
    for text in texts {
        let (_, found) = parse(HERE, text);
        assert!(!found.is_empty(), "{text}");
        for Diagnostic { message, help, .. } in &found {
            let all = format!("{message} {}", help.clone().unwrap_or_default());
            assert!(
                !all.contains("_op") && !all.contains("kw_") && !all.contains("_only"),
                "{all}"
            );
            let plain = message.split('`').step_by(2).collect::<String>();
            assert!(!plain.contains('_'), "{text}: {message}");
            assert!(!message.ends_with('.'), "{message}");
        }
    }
}
