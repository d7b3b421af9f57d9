//! The inner loop of a product: a block of sums in registers, to which it adds columns times rows.
//!
//! A sum takes [`TERMS`] terms in their order, each by one rounding where the machine fuses a product and a sum, and is then added to
//! the sums before. So a number of the result has the same bits whatever the rows and columns around it, the threads and the width of
//! the vectors; and its error grows with the root of `k`.

use macerator::{Scalar, Simd, Vector, WithSimd};

/// Terms that a register sums (`benches/results/2026-11-29-cpu-products.md`). Who adds a part of the terms takes a multiple of these.
pub(super) const TERMS: usize = 128;
/// Vectors in a row of a block, at most.
const VECTORS: usize = 2;

/// Asks for the numbers in a vector.
struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    fn with_simd<S: Simd>(self) -> usize {
        S::lanes32()
    }
}

/// The largest block that the registers of this machine hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Block {
    /// Columns of a narrow block.
    pub(super) fn narrow(self) -> usize {
        self.columns / VECTORS
    }

    pub(super) fn of_this_machine() -> Self {
        let lanes = macerator::AutoArch::new().dispatch(Lanes);
        // AVX-512 and NEON have 32 registers, the others 16. A row of `b` and a number of `a` need three. More than 12 rows can evict each
        // other from a cache of 12 ways.
        let rows = if lanes == 16 || cfg!(target_arch = "aarch64") { 12 } else { 6 };
        Self { rows, columns: VECTORS * lanes }
    }
}

/// Sums, and what is added to them. Each pointer leads to the first number, and stands next to the distance from row to row.
pub(super) struct Sums {
    /// At most as many as [`Block`] has.
    pub(super) rows: usize,
    /// Whether they have as many columns as a vector, and not as [`Block`] has.
    pub(super) is_narrow: bool,
    pub(super) k: usize,
    /// `rows` rows of `k` numbers.
    pub(super) a: (*const f32, usize),
    /// `k` rows of as many columns as the sums have.
    pub(super) b: (*const f32, usize),
    /// The sums.
    pub(super) c: (*mut f32, usize),
    /// Whether the sums begin at 0, and not at what is there.
    pub(super) is_first: bool,
}

/// Adds to blocks, compiled for the widest vectors of this machine.
///
/// # Safety
/// The pointers of all sums must be valid for their rows, columns and `k`, and nothing else may refer to the numbers of `c`.
#[expect(unsafe_code, reason = "the numbers of a block lie in rows, between numbers of other threads")]
pub(super) unsafe fn add(sums: impl Iterator<Item = Sums>) {
    macerator::AutoArch::new().dispatch(Blocks(sums));
}

/// What [`add`] does for one kind of vectors.
struct Blocks<I>(I);

#[expect(unsafe_code, reason = "see `add`")]
impl<I: Iterator<Item = Sums>> WithSimd for Blocks<I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        // Closures would not be compiled for these vectors.
        for sums in self.0 {
            // SAFETY: as the caller of `add` promises.
            unsafe { add_block::<S>(&sums) };
        }
    }
}

#[expect(unsafe_code, reason = "see `add`")]
#[inline(always)]
unsafe fn add_block<S: Simd>(sums: &Sums) {
    macro_rules! of_rows {
        ($($rows:literal)+) => {
            // SAFETY: as the caller promises.
            match sums.rows {
                $($rows if sums.is_narrow => unsafe { add_rows::<S, $rows, 1>(sums) },
                $rows => unsafe { add_rows::<S, $rows, VECTORS>(sums) },)+
                rows => unreachable!("a block of {rows} rows"),
            }
        };
    }
    of_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[expect(unsafe_code, reason = "see `add`")]
#[inline(always)]
unsafe fn add_rows<S: Simd, const ROWS: usize, const N: usize>(sums: &Sums) {
    let ((a, right), (b, down)) = (sums.a, sums.b);
    for first in (0..sums.k.max(1)).step_by(TERMS) {
        let mut block: [[Vector<S, f32>; N]; ROWS] = [[f32::splat(0.0); N]; ROWS];
        let terms = first..(first + TERMS).min(sums.k);
        // SAFETY: as the caller promises.
        unsafe {
            for l in terms {
                add_row::<S, ROWS, N>(&mut block, a.add(l), right, b.add(l * down));
            }
            write::<S, ROWS, N>(&block, sums.c, sums.is_first && first == 0);
        }
    }
}

/// Writes the sums, added to what is there unless they are the first.
#[expect(unsafe_code, reason = "see `add`")]
#[inline(always)]
unsafe fn write<S: Simd, const ROWS: usize, const N: usize>(
    block: &[[Vector<S, f32>; N]; ROWS],
    (c, stride): (*mut f32, usize),
    is_first: bool,
) {
    // SAFETY: as the caller promises.
    unsafe {
        for (i, row) in block.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let c = c.add(i * stride + j * S::lanes32());
                f32::vstore_unaligned(c, if is_first { *sum } else { f32::vload_unaligned(c) + *sum });
            }
        }
    }
}

/// Adds numbers of the left operand, at a distance, times a row of the right one.
#[expect(unsafe_code, reason = "see `add`")]
#[inline(always)]
unsafe fn add_row<S: Simd, const ROWS: usize, const N: usize>(
    block: &mut [[Vector<S, f32>; N]; ROWS],
    a: *const f32,
    stride: usize,
    b: *const f32,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut row: [Vector<S, f32>; N] = [f32::splat(0.0); N];
        for (j, b_of_vector) in row.iter_mut().enumerate() {
            *b_of_vector = f32::vload_unaligned(b.add(j * S::lanes32()));
        }
        for (i, sums) in block.iter_mut().enumerate() {
            let a: Vector<S, f32> = f32::splat(*a.add(i * stride));
            for (sum, b) in sums.iter_mut().zip(row) {
                *sum = a.mul_add(b, *sum);
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::is_x86_feature_detected as has;

    use macerator::Arch;

    use super::*;

    /// Adds a block, and checks its sums against f64. Returns the first four columns.
    #[expect(unsafe_code, reason = "the kernel takes pointers")]
    fn sums(arch: Arch, rows: usize, k: usize, is_narrow: bool) -> Vec<Vec<f32>> {
        // SAFETY: the caller has found the instructions.
        let lanes = unsafe { arch.dispatch(Lanes) };
        let columns = if is_narrow { lanes } else { VECTORS * lanes };
        let number = |i: usize, l: usize| ((i * 31 + l * 17) % 101) as f32 / 101.0 - 0.3;
        let a: Vec<f32> = (0..k * rows).map(|place| number(place / k, place % k)).collect();
        let b: Vec<f32> = (0..k * columns).map(|place| number(place % columns + 50, place / columns)).collect();
        let mut c = vec![1.0; rows * columns];
        let one = Sums {
            rows,
            is_narrow,
            k,
            a: (a.as_ptr(), k),
            b: (b.as_ptr(), columns),
            c: (c.as_mut_ptr(), columns),
            is_first: false,
        };
        // SAFETY: the vectors have these numbers.
        unsafe {
            arch.dispatch(Blocks(std::iter::once(one)));
        }

        for (place, found) in c.iter().enumerate() {
            let (i, j) = (place / columns, place % columns);
            let terms = (0..k).map(|l| f64::from(number(i, l)) * f64::from(number(j + 50, l)));
            let expected = 1.0 + terms.sum::<f64>();
            assert!((f64::from(*found) - expected).abs() < 1e-6 * k as f64, "{i}, {j}: {found} is not {expected}");
        }
        c.chunks(columns).map(|row| row.iter().copied().take(4).collect()).collect()
    }

    #[test]
    fn vectors_of_every_width_give_the_same_bits() {
        for (rows, k) in [(1, 1), (3, 40), (6, 300), (5, 128)] {
            for is_narrow in [false, true] {
                if has!("sse4.2") {
                    sums(Arch::V2, rows, k, is_narrow);
                }
                if !(has!("avx2") && has!("fma") && matches!(Arch::detect(), Arch::V4)) {
                    println!("skipped: this machine has no AVX-512");
                    continue;
                }
                let (medium, wide) = (sums(Arch::V3, rows, k, is_narrow), sums(Arch::V4, rows, k, is_narrow));
                assert_eq!(medium, wide, "{rows} rows, {k} terms, narrow: {is_narrow}");
            }
        }
    }
}
