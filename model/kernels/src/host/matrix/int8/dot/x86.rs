//! Vectors of x86.

use std::arch::x86_64::*;

use super::{Dot, Operands, block_of};

macro_rules! compiled {
    ($name:ident, $features:literal, $dot:ident) => {
        #[doc = concat!("The sums of a block, compiled for ", $features, ", see [`super::Instructions::sums`].")]
        #[expect(unsafe_code, reason = "see `Instructions::sums`")]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(block: &Operands, into: &mut [i32]) {
            // SAFETY: as the caller promises.
            unsafe { block_of::<$dot>(block, into) }
        }
    };
}
compiled!(avx512_vnni, "avx512f,avx512bw,avx512vl,avx512vnni", Avx512Vnni);
compiled!(avx_vnni, "avx2,avxvnni", AvxVnni);
compiled!(avx2, "avx2", Avx2);

/// Reads a group of four numbers.
#[expect(unsafe_code, reason = "see `Dot`")]
#[inline(always)]
unsafe fn group(from: *const i8) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { from.cast::<i32>().read_unaligned() }
}

struct Avx512Vnni;

#[expect(unsafe_code, reason = "see `Dot`")]
// SAFETY of the methods: as the caller promises.
impl Dot for Avx512Vnni {
    type Sums = __m512i;
    type Weights = __m512i;
    type Left = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn left(from: *const i8) -> __m512i {
        unsafe { _mm512_set1_epi32(group(from)) }
    }

    #[inline(always)]
    unsafe fn add(sums: __m512i, weights: __m512i, left: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, weights, left) }
    }

    #[inline(always)]
    unsafe fn store(sums: __m512i, to: *mut i32) {
        unsafe { _mm512_storeu_si512(to.cast(), sums) }
    }
}

struct AvxVnni;

#[expect(unsafe_code, reason = "see `Dot`")]
// SAFETY of the methods: as the caller promises.
impl Dot for AvxVnni {
    type Sums = __m256i;
    type Weights = __m256i;
    type Left = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn left(from: *const i8) -> __m256i {
        unsafe { _mm256_set1_epi32(group(from)) }
    }

    #[inline(always)]
    unsafe fn add(sums: __m256i, weights: __m256i, left: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(sums, weights, left) }
    }

    #[inline(always)]
    unsafe fn store(sums: __m256i, to: *mut i32) {
        unsafe { _mm256_storeu_si256(to.cast(), sums) }
    }
}

/// The numbers of each group are widened to 16 bits, the first and third apart from the others.
struct Avx2;

#[expect(unsafe_code, reason = "see `Dot`")]
// SAFETY of the methods: as the caller promises.
impl Dot for Avx2 {
    type Sums = __m256i;
    type Weights = [__m256i; 2];
    type Left = [__m256i; 2];
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> [__m256i; 2] {
        unsafe {
            let bytes = _mm256_loadu_si256(from.cast());
            [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
        }
    }

    #[inline(always)]
    unsafe fn left(from: *const i8) -> [__m256i; 2] {
        unsafe {
            let bytes = _mm256_set1_epi32(group(from));
            [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes)]
        }
    }

    #[inline(always)]
    unsafe fn add(sums: __m256i, weights: [__m256i; 2], left: [__m256i; 2]) -> __m256i {
        unsafe {
            let (first, second) = (_mm256_madd_epi16(weights[0], left[0]), _mm256_madd_epi16(weights[1], left[1]));
            _mm256_add_epi32(sums, _mm256_add_epi32(first, second))
        }
    }

    #[inline(always)]
    unsafe fn store(sums: __m256i, to: *mut i32) {
        unsafe { _mm256_storeu_si256(to.cast(), sums) }
    }
}
