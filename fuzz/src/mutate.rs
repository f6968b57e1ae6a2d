//! Mutations of texts: pieces removed, doubled, swapped, taken from other texts; words of the language and
//! awkward numbers put in; bytes changed.
//!
//! In: a pool of inputs and a source of random numbers. Out: one more input, near to one of the pool.

/// Random numbers: xorshift, the same for the same seed.
pub struct Random(u64);

impl Random {
    /// Starts from a seed; any will do.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if n == 0 { 0 } else { (self.0 >> 11) as usize % n }
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "2",
    "1e308",
    "1e-320",
    "9999999999999999999",
    "4294967296",
    "0.5",
    "128",
    "1_000",
    "nan",
    ".inf",
    "1e5",
    "0x10",
    "100000000",
];

const MARKS: [&str; 40] = [
    "(", ")", "[", "]", "{", "}", "\"", "'", "#", "##", "\\", "\n", " ", "\t", ",", ":", ";", ".",
    "..", "..=", "->", "=", "==", "<", "@", "|", "*", "/", "//", "^", "%", "-", "é", "😀",
    "\u{feff}", "\r\n", "${", "}", "&a ", "*a",
];

/// One input near to one of the pool: more often to a short one, which takes less time.
pub fn mutate(pool: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let some = [random.of(pool), random.of(pool), random.of(pool)];
    let mut out = some.into_iter().min_by_key(|s| s.len()).cloned().unwrap_or_default();
    for _ in 0..1 + random.below(4) {
        once(&mut out, pool, words, random);
    }
    out.truncate(64 << 10);
    out
}

fn once(out: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let at = random.below(out.len() + 1);
    match random.below(12) {
        0 if !out.is_empty() => {
            let at = at.min(out.len() - 1);
            out[at] ^= 1 << random.below(8);
        }
        1 => insert(out, at, random.of(&MARKS).as_bytes()),
        2 | 3 if !words.is_empty() => {
            let word = format!(" {} ", random.of(words));
            insert(out, at, word.as_bytes());
        }
        4 => {
            let end = (at + 1 + random.below(20)).min(out.len());
            out.drain(at..end);
        }
        5 => {
            let (from, to) = token(out, at);
            let piece = random.of(&NUMBERS).as_bytes();
            out.splice(from..to, piece.iter().copied());
        }
        6 => {
            // A word in place of another.
            let other = random.of(pool);
            let (from, to) = token(other, random.below(other.len() + 1));
            let piece = other[from..to].to_vec();
            let (from, to) = token(out, at);
            out.splice(from..to, piece);
        }
        7 => {
            let (from, to) = line(out, at);
            let piece = out[from..to].to_vec();
            let at = line(out, random.below(out.len() + 1)).0;
            insert(out, at, &piece);
        }
        8 => {
            let (from, to) = line(out, at);
            out.drain(from..to);
        }
        9 => {
            let other = random.of(pool);
            let (from, to) = line(other, random.below(other.len() + 1));
            let piece = other[from..to].to_vec();
            let at = line(out, at).0;
            insert(out, at, &piece);
        }
        10 => {
            // The start of one and the end of another.
            let other = random.of(pool);
            let (from, _) = line(other, random.below(other.len() + 1));
            out.truncate(line(out, at).1);
            out.extend_from_slice(&other[from..]);
        }
        _ => {
            let n = 1 + random.below(200);
            let piece = random.of(&MARKS).as_bytes().repeat(n);
            insert(out, at, &piece);
        }
    }
}

fn insert(out: &mut Vec<u8>, at: usize, piece: &[u8]) {
    out.splice(at..at, piece.iter().copied());
}

/// The word around an offset.
fn token(text: &[u8], at: usize) -> (usize, usize) {
    let word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
    let from = text[..at].iter().rposition(|b| !word(b)).map_or(0, |i| i + 1);
    let to = text[at..].iter().position(|b| !word(b)).map_or(text.len(), |i| at + i);
    (from, to)
}

/// The line around an offset, its break included.
fn line(text: &[u8], at: usize) -> (usize, usize) {
    let from = text[..at].iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let to = text[at..].iter().position(|b| *b == b'\n').map_or(text.len(), |i| at + i + 1);
    (from, to)
}
