//! Philox4x32-7 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). With seven rounds it passes all
//! tests of BigCrush (section 4, table 2). FlashAttention uses seven rounds too; PyTorch uses ten, for a margin.

pub(crate) const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
pub(crate) const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
pub(crate) const ROUNDS: u32 = 7;

/// Returns four random words for `counter` under `key`.
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_many(counter.map(|word| [word]), key).map(|[word]| word)
}

/// Returns [`philox`] of `N` counters, word by word: the compiler turns the loop over them into vector instructions.
#[inline(always)]
pub(crate) fn philox_many<const N: usize>(counters: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let mut words = counters;
    for i in 0..N {
        let (mut counter, mut key) = (counters.map(|word| word[i]), key);
        for _ in 0..ROUNDS {
            let p0 = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
            let p1 = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
            let [high0, high1] = [p0, p1].map(|p| (p >> 32) as u32);
            counter = [high1 ^ counter[1] ^ key[0], p1 as u32, high0 ^ counter[3] ^ key[1], p0 as u32];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        (0..4).for_each(|word| words[word][i] = counter[word]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{philox, philox_many};

    /// Compares with the known answers that Random123 publishes (`kat_vectors`, philox 4x32, 7 rounds).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(counter, [0xa409_3822, 0x299f_31d0]), [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
    }

    #[test]
    fn many_counters_give_what_each_gives() {
        let counters = std::array::from_fn(|word| std::array::from_fn(|i: usize| 0x4000_0001 * word as u32 + i as u32));
        let words = philox_many::<16>(counters, [7, u32::MAX]);
        for i in 0..16 {
            assert_eq!(words.map(|word| word[i]), philox(counters.map(|word| word[i]), [7, u32::MAX]));
        }
    }
}
