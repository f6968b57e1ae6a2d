//! `nrlc new` and `nrlc diff` from outside.

use crate::support::Bench;

#[test]
fn a_new_recipe_checks_and_is_in_the_standard_layout() {
    let b = Bench::new();
    b.run(&["new", "my-sort"]).succeeds();
    for file in ["my_sort.nrl", "README.md", ".gitignore", ".github/workflows/check.yml"] {
        let text = std::fs::read_to_string(b.path("my-sort").join(file)).expect(file);
        assert!(!text.contains("NAME"), "{file}: {text}");
    }
    let checked = b.run(&["check", "my-sort/my_sort.nrl", "--deny", "warnings"]);
    checked.succeeds();
    assert_eq!(checked.err, "");
    b.run(&["fmt", "--check", "my-sort"]).succeeds();
    b.run(&["test", "my-sort/my_sort.nrl"]).succeeds();
    let again = b.run(&["new", "my-sort"]);
    assert_eq!(again.code, Some(2));
    assert!(again.err.contains("is there already"), "{}", again.err);
    for name in ["9lives", "a b", "match", "places", ".."] {
        assert_eq!(b.run(&["new", name]).code, Some(2), "{name}");
    }
}

#[test]
fn diff_tells_meaning_from_text_by_its_exit_code() {
    let b = Bench::new();
    b.run(&["new", "sort"]).succeeds();
    let text = std::fs::read_to_string(b.path("sort/sort.nrl")).expect("the recipe");
    b.write("same.nrl", format!("# a comment\n{text}"));
    b.write("other.nrl", text.replace("lr = 3e-4", "lr = 1e-4"));
    let same = b.run(&["diff", "sort/sort.nrl", "same.nrl"]);
    same.succeeds();
    assert!(same.out.contains("mean the same"), "{}", same.out);
    let other = b.run(&["diff", "sort/sort.nrl", "other.nrl"]);
    assert_eq!(other.code, Some(1), "{}", other.err);
    assert_eq!(other.out.lines().count(), 2, "{}", other.out);
    assert!(other.out.contains("lr"), "{}", other.out);
    let json = b.run(&["diff", "sort/sort.nrl", "other.nrl", "--format", "json"]);
    let all: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(all["same"], false);
    b.write("broken.nrl", "recipe r {\n  x = (\n");
    let broken = b.run(&["diff", "sort/sort.nrl", "broken.nrl"]);
    assert_eq!(broken.code, Some(2));
    assert!(broken.err.contains("error["), "{}", broken.err);
}
