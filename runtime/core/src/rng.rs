//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! In: what a number is for (seed, step, sample, position, token; or seed, parameter, index). Out: that number.
//! There is no state: a number depends on its name alone, never on rank, batch slot or order, so the same recipe
//! samples the same tokens on any layout.

/// Multipliers and key increments of the published generator.
const M0: u64 = 0xD251_1F53;
const M1: u64 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// One block of Philox4x32-10: four words from a counter and a key.
#[inline]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = M0 * u64::from(c0);
        let p1 = M1 * u64::from(c2);
        (c0, c1, c2, c3) =
            ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// What a stream of numbers is for; different uses never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Use {
    /// Gumbel noise of one token.
    Token = 1,
    /// Gumbel noise of one block of tokens.
    Block = 2,
    /// Initial weights.
    Init = 3,
    /// Order of a data set.
    Shuffle = 4,
    /// Anything else a host expression draws.
    Host = 5,
}

/// The numbers that belong to one (seed, step, sample) or any other pair of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
}

impl Stream {
    /// Stream of one rollout: `sample` is the global number of the sample, never a slot or a rank.
    pub fn sample(seed: u64, step: u64, sample: u64) -> Stream {
        Stream::new(seed).child(step).child(sample)
    }

    /// Stream of one parameter's initial weights.
    pub fn param(seed: u64, name: &str) -> Stream {
        Stream::new(seed).child(hash(name.as_bytes()))
    }

    /// Stream of a seed alone.
    pub fn new(seed: u64) -> Stream {
        Stream { key: [seed as u32, (seed >> 32) as u32] }
    }

    /// Stream below this one, named by a number.
    pub fn child(self, name: u64) -> Stream {
        let [a, b, _, _] = philox([name as u32, (name >> 32) as u32, 0x6E72_6C63, 0], self.key);
        Stream { key: [a, b] }
    }

    /// The four words numbered `4 * block .. 4 * block + 4` at `position`.
    #[inline]
    pub fn words(&self, purpose: Use, position: u64, block: u32) -> [u32; 4] {
        philox([block, position as u32, (position >> 32) as u32, purpose as u32], self.key)
    }

    /// The word numbered `index` at `position`.
    #[inline]
    pub fn word(&self, purpose: Use, position: u64, index: u32) -> u32 {
        self.words(purpose, position, index >> 2)[(index & 3) as usize]
    }

    /// Gumbel noise of token `id` at `position`.
    #[inline]
    pub fn gumbel(&self, purpose: Use, position: u64, id: u32) -> f64 {
        gumbel_of(self.word(purpose, position, id))
    }

    /// Gumbel noise of the tokens `first .. first + out.len()`: the same numbers as [`Stream::gumbel`], made four at a time.
    pub fn fill_gumbel(&self, purpose: Use, position: u64, first: u32, out: &mut [f64]) {
        let mut done = 0;
        while done < out.len() {
            let id = first + done as u32;
            let words = self.words(purpose, position, id >> 2);
            let skip = (id & 3) as usize;
            for (slot, &word) in out[done..].iter_mut().zip(&words[skip..]) {
                *slot = gumbel_of(word);
            }
            done += 4 - skip;
        }
    }

    /// Standard normal numbers `first .. first + out.len()` (Box-Muller on two 32-bit words each).
    pub fn fill_normal(&self, purpose: Use, first: u64, out: &mut [f32]) {
        for (i, slot) in out.iter_mut().enumerate() {
            let index = first + i as u64;
            let w = self.words(purpose, index >> 1, 0);
            let radius = (-2.0 * unit_open(w[0]).ln()).sqrt();
            let angle = std::f64::consts::TAU * unit_open(w[1]);
            let value = if index & 1 == 0 { angle.cos() } else { angle.sin() };
            *slot = (radius * value) as f32;
        }
    }

    /// A whole number below `n` at `position`, without bias worth naming (64 bits scaled). `n` must not be 0.
    pub fn below(&self, purpose: Use, position: u64, n: u64) -> u64 {
        let w = self.words(purpose, position, 0);
        let wide = (u64::from(w[0]) << 32) | u64::from(w[1]);
        ((u128::from(wide) * u128::from(n)) >> 64) as u64
    }
}

/// Maps a word to the open interval (0, 1): the midpoints of 2^32 equal cells, so neither 0 nor 1 occurs.
#[inline]
pub fn unit_open(word: u32) -> f64 {
    (f64::from(word) + 0.5) * (1.0 / 4_294_967_296.0)
}

/// Standard Gumbel noise from a word; always between -3.2 and 22.9.
#[inline]
pub fn gumbel_of(word: u32) -> f64 {
    -(-unit_open(word).ln()).ln()
}

/// FNV-1a, 64 bits: a name or a file's content as a number that never changes.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (file kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_ends_of_the_unit_interval_are_safe() {
        for word in [0, u32::MAX] {
            let u = unit_open(word);
            assert!(u > 0.0 && u < 1.0);
            assert!(gumbel_of(word).is_finite());
        }
        assert!(gumbel_of(0) > -3.2 && gumbel_of(u32::MAX) < 22.9);
    }

    #[test]
    fn a_filled_range_equals_single_draws_wherever_it_starts() {
        let stream = Stream::sample(7, 3, 1_000_003);
        for first in [0, 1, 2, 3, 4, 49_151] {
            let mut row = [0.0; 11];
            stream.fill_gumbel(Use::Token, 5, first, &mut row);
            for (i, &x) in row.iter().enumerate() {
                assert_eq!(x, stream.gumbel(Use::Token, 5, first + i as u32));
            }
        }
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let draw = |seed, step, sample, position, token| {
            Stream::sample(seed, step, sample).word(Use::Token, position, token)
        };
        let base = draw(1, 2, 3, 4, 5);
        let others = [
            draw(9, 2, 3, 4, 5),
            draw(1, 9, 3, 4, 5),
            draw(1, 2, 9, 4, 5),
            draw(1, 2, 3, 9, 5),
            draw(1, 2, 3, 4, 9),
        ];
        assert!(others.iter().all(|&x| x != base));
        assert_eq!(base, draw(1, 2, 3, 4, 5));
        assert_ne!(base, Stream::sample(1, 2, 3).word(Use::Block, 4, 5));
    }

    #[test]
    fn gumbel_has_its_mean_and_variance() {
        let mut row = vec![0.0; 200_000];
        Stream::sample(1, 0, 0).fill_gumbel(Use::Token, 0, 0, &mut row);
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let var = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        // Euler's constant and pi^2 / 6; five standard errors.
        assert!((mean - 0.577_215_7).abs() < 5.0 * (1.644_934 / n).sqrt(), "{mean}");
        assert!((var - 1.644_934).abs() < 0.04, "{var}");
    }

    #[test]
    fn normal_draws_have_the_right_moments_and_do_not_depend_on_the_start() {
        let stream = Stream::param(42, "layers.0.wq");
        let mut all = vec![0.0; 100_000];
        stream.fill_normal(Use::Init, 0, &mut all);
        let mut part = vec![0.0; 7];
        stream.fill_normal(Use::Init, 501, &mut part);
        assert_eq!(part, all[501..508]);
        let n = all.len() as f64;
        let moment = |k: i32| all.iter().map(|&x| f64::from(x).powi(k)).sum::<f64>() / n;
        assert!(moment(1).abs() < 0.016, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.023, "{}", moment(2));
        assert!(moment(3).abs() < 0.062, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.16, "{}", moment(4));
    }

    #[test]
    fn names_hash_to_published_values() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(b"foobar"), 0x85944171f73967e8);
    }
}
