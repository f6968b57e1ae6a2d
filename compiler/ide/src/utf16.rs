//! Positions as editors count them: lines from zero, UTF-16 units from zero.
//!
//! In: a text, and offsets or positions that may lie outside of it. Out: the other, inside of it, never
//! within a character.

/// A place in an editor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Position {
    pub line: u32,
    pub unit: u32,
}

/// The byte offset of a position; past the end of a line means its end.
pub fn offset(text: &str, at: Position) -> usize {
    let mut start = 0;
    for _ in 0..at.line {
        match text[start..].find('\n') {
            Some(next) => start += next + 1,
            None => return text.len(),
        }
    }
    let line = text[start..].split('\n').next().unwrap_or("").trim_end_matches('\r');
    let mut units = 0;
    for (at_byte, c) in line.char_indices() {
        if units + c.len_utf16() as u32 > at.unit {
            return start + at_byte;
        }
        units += c.len_utf16() as u32;
    }
    start + line.len()
}

/// The position of a byte offset.
pub fn position(text: &str, offset: usize) -> Position {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line = before.matches('\n').count() as u32;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let unit = before[start..].chars().map(|c| c.len_utf16() as u32).sum();
    Position { line, unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_utf16() {
        let text = "aé😀b\r\nx\n";
        // a is 1 unit and 1 byte, é 1 and 2, the face 2 and 4.
        for (byte, line, unit) in
            [(0, 0, 0), (1, 0, 1), (3, 0, 2), (7, 0, 4), (8, 0, 5), (10, 1, 0), (12, 2, 0)]
        {
            assert_eq!(position(text, byte), Position { line, unit }, "{byte}");
            assert_eq!(offset(text, Position { line, unit }), byte, "{line}:{unit}");
        }
        // Inside of a character, behind a line, behind the text.
        assert_eq!(offset(text, Position { line: 0, unit: 3 }), 3);
        assert_eq!(offset(text, Position { line: 0, unit: 99 }), 8);
        assert_eq!(offset(text, Position { line: 9, unit: 0 }), 12);
        assert_eq!(position(text, 5), Position { line: 0, unit: 2 });
        assert_eq!(position(text, 99), Position { line: 2, unit: 0 });
    }
}
