//! One `}` too many: which one it is.
//!
//! In: the tokens of a file whose brackets do not pair. Out: the brace without which all of them do, if there is one. Of
//! several, it is the one that leaves the fewest blocks whose end does not stand in the column of the line that opened
//! them: people indent by what they mean.

use super::{closer_of, column, first_char, line_break_between, starts_item};
use crate::lex::{Token, TokenKind};

/// How many braces are tried.
const TRIED: usize = 8;

/// The brace that is too many.
pub(super) fn extra_brace(text: &str, code: &[Token]) -> Option<Token> {
    let (odd, _) = paired(text, code, None)?;
    let braces = odd.into_iter().filter(|t| t.text(text) == "}").take(TRIED);
    let tried = braces.filter_map(|token| {
        let (odd, whole) = paired(text, code, Some(token.start))?;
        whole.then_some((odd.len(), token))
    });
    // The first of the best.
    tried.min_by_key(|(odd, token)| (*odd, token.start)).map(|(_, token)| token)
}

/// Pairs brackets, without the one at byte `without`: tokens that stand oddly, and whether all have a partner. None where
/// something else than a brace is wrong.
fn paired(text: &str, code: &[Token], without: Option<usize>) -> Option<(Vec<Token>, bool)> {
    let (mut open, mut odd, mut whole) = (vec![], vec![], true);
    let (mut indent, mut line, mut last_end) = (0, 0, 0);
    // The brace that ended an item, until the next one begins.
    let mut ended: Option<Token> = None;
    for token in code {
        let first = line_break_between(text, last_end, token.start) || last_end == 0;
        last_end = token.end;
        if Some(token.start) == without {
            continue;
        }
        if first {
            indent = column(text, token.start);
            line = token.start;
            if indent == 0 && !open.is_empty() && starts_item(token.text(text)) {
                odd.push(*token);
            }
            // What is indented belongs inside of something.
            odd.extend(ended.take().filter(|_| indent > 0));
        }
        match token.kind {
            TokenKind::Open => open.push((*token, indent, line)),
            TokenKind::Close => {
                let fits = |o: &Token| closer_of(o.text(text)) == first_char(token.text(text));
                match open.last() {
                    Some((opener, at, from)) if fits(opener) => {
                        let apart = *from != line && opener.text(text) == "{";
                        if apart && (!first || indent != *at) {
                            odd.push(*token);
                        }
                        open.pop();
                        ended = open.is_empty().then_some(*token);
                    }
                    _ if token.text(text) == "}" => {
                        odd.push(*token);
                        whole = false;
                    }
                    _ => return None,
                }
            }
            _ => {}
        }
    }
    open.is_empty().then_some((odd, whole))
}
