//! Every diagnostic code with its one-line summary.
//!
//! A code is a kebab-case slug, the same everywhere: in messages, in tests and as the name of its
//! page `docs/errors/<slug>.md`. A test keeps this table and the pages equal.

/// Slugs and summaries, sorted by slug.
pub const CODES: &[(&str, &str)] = &[
    ("bad-escape", "a text holds a backslash escape that does not exist"),
    ("bad-number", "a number is too large or is not written as numbers are"),
    ("file-too-large", "a file is larger than a recipe can be"),
    ("nesting-too-deep", "brackets are nested deeper than 128"),
    ("not-utf8", "a file holds bytes that are not UTF-8 text"),
    ("syntax", "the text is not what the grammar expects here"),
    ("unbalanced-bracket", "a bracket is not closed, or closes nothing"),
    ("unknown-character", "a character has no meaning outside texts and comments"),
    ("unterminated-text", "a text starts with a quote and does not end on its line"),
];

/// The summary of a code, if it exists.
pub fn summary(code: &str) -> Option<&'static str> {
    CODES.iter().find(|(slug, _)| *slug == code).map(|(_, summary)| *summary)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::CODES;

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let pages: BTreeSet<String> = std::fs::read_dir(&folder)
            .expect("docs/errors exists")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".md").map(str::to_string))
            .collect();
        let codes: BTreeSet<String> = CODES.iter().map(|(slug, _)| slug.to_string()).collect();
        let without_page: Vec<_> = codes.difference(&pages).collect();
        let without_code: Vec<_> = pages.difference(&codes).collect();
        assert!(without_page.is_empty(), "codes without docs/errors page: {without_page:?}");
        assert!(without_code.is_empty(), "pages without a code in CODES: {without_code:?}");
    }

    #[test]
    fn codes_are_sorted_and_unique() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
