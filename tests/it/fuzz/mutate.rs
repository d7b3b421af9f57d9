//! Small damage, of the kinds that readers get wrong.

/// Makes inputs from seeds; the same seed makes the same inputs.
pub(super) struct Mutator(u64);

/// Numbers at the edges of what formats hold.
const EDGES: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX, 0x2000_0000_0000_0001];
/// Text that means something to some format.
const WORDS: [&[u8]; 14] = [
    b"../",
    b"/",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"NaN",
    b"1e999",
    b"-1",
    b"[[",
    b"{\"",
    b"\r\n",
    b"\t",
];
const MAX_BYTES: usize = 1 << 16;

impl Mutator {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// xorshift64* (Vigna 2016).
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % end.max(1)
    }

    /// One to six changes to one of `seeds`.
    pub(super) fn mutate(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            let len = self.below(32).min(bytes.len() - at);
            match self.below(9) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..at + len)),
                4 => {
                    let copy = bytes[at..at + len].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, copy);
                }
                5 => {
                    let width = [1, 2, 4, 8][self.below(4)];
                    let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                    let end = bytes.len().min(at + width);
                    bytes[at..end].copy_from_slice(&edge[..end - at]);
                }
                6 => {
                    let word = WORDS[self.below(WORDS.len())];
                    bytes.splice(at..at, word.iter().copied());
                }
                7 => {
                    let digits = EDGES[self.below(EDGES.len())].to_string();
                    bytes.splice(at..at + len.min(4), digits.into_bytes());
                }
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len() + 1);
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }
}
