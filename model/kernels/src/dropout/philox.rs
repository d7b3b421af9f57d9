//! Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

pub(crate) const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
pub(crate) const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
pub(crate) const ROUNDS: u32 = 10;

/// Four random words for `counter` under `key`.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let p1 = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter =
            [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers that Random123 publishes (`kat_vectors`, philox 4x32, 10 rounds).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(counter, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
