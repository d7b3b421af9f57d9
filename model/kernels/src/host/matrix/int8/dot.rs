//! The inner loop of a product in int8: a block of sums in registers, to which an instruction adds four products at a time.
//!
//! Instructions multiply numbers without a sign by numbers with one, so that weights come with 128 added; the caller subtracts 128 times
//! the sum of the row. Every kind of instructions gives the same whole numbers.

#[cfg(target_arch = "x86_64")]
mod x86;

/// Vectors in a row of a block.
const VECTORS: usize = 2;
/// The most rows of a block.
pub(super) const ROWS: usize = 12;

/// The instructions of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instructions {
    /// 16 sums of four products each (AVX-512 VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// 8 sums of four products each (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// 8 sums of two products each, of 16 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Loops.
    Portable,
}

impl Instructions {
    pub(super) fn of_this_machine() -> Self {
        Self::all().into_iter().next().expect("loops at least")
    }

    /// All that this machine has, the fastest first.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let is_wide = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vnni");
            let of_machine =
                [(is_wide, Self::Avx512Vnni), (has!("avxvnni"), Self::AvxVnni), (has!("avx2"), Self::Avx2)];
            all.extend(of_machine.into_iter().filter(|(is_there, _)| *is_there).map(|(_, one)| one));
        }
        all.push(Self::Portable);
        all
    }

    /// Sums in a row of a block.
    pub(super) fn columns(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => 16 * VECTORS,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni | Self::Avx2 => 8 * VECTORS,
            Self::Portable => 8 * VECTORS,
        }
    }

    /// Rows of a block: as many as the registers hold.
    pub(super) fn rows(self) -> usize {
        if self.columns() == 16 * VECTORS { ROWS } else { ROWS / 2 }
    }

    /// Returns the sums of a block, row by row.
    ///
    /// # Safety
    /// The machine has these instructions, see [`Self::all`]. `a` leads to `rows` rows of `groups` times four numbers, and `b` to
    /// `groups` rows of as many groups as a block has columns.
    #[expect(unsafe_code, reason = "rows of a block lie at a distance, and not every machine has these instructions")]
    pub(super) unsafe fn sums(self, block: &Operands, into: &mut [i32]) {
        assert!(block.rows <= self.rows() && into.len() == block.rows * self.columns(), "a block of sums");
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512Vnni => x86::avx512_vnni(block, into),
                #[cfg(target_arch = "x86_64")]
                Self::AvxVnni => x86::avx_vnni(block, into),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::avx2(block, into),
                Self::Portable => block_of::<Portable>(block, into),
            }
        }
    }
}

/// The operands of a block.
pub(super) struct Operands {
    pub(super) rows: usize,
    pub(super) groups: usize,
    /// The left rows, and the distance from one to the next.
    pub(super) a: (*const i8, usize),
    /// A panel.
    pub(super) b: *const u8,
}

/// What a kind of instructions does.
#[expect(unsafe_code, reason = "pointers, and instructions that not every machine has")]
trait Dot {
    type Sums: Copy;
    type Weights: Copy;
    type Left: Copy;
    const LANES: usize;

    unsafe fn zero() -> Self::Sums;
    /// Reads a group for each sum.
    unsafe fn weights(from: *const u8) -> Self::Weights;
    /// Reads one group for all sums.
    unsafe fn left(from: *const i8) -> Self::Left;
    unsafe fn add(sums: Self::Sums, weights: Self::Weights, left: Self::Left) -> Self::Sums;
    unsafe fn store(sums: Self::Sums, to: *mut i32);
}

#[expect(unsafe_code, reason = "see `Instructions::sums`")]
#[inline(always)]
unsafe fn block_of<D: Dot>(block: &Operands, into: &mut [i32]) {
    macro_rules! of_rows {
        ($($rows:literal)+) => {
            match block.rows {
                // SAFETY: as the caller promises.
                $($rows => unsafe { rows_of::<D, $rows>(block, into) },)+
                rows => unreachable!("a block of {rows} rows"),
            }
        };
    }
    of_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[expect(unsafe_code, reason = "see `Instructions::sums`")]
#[inline(always)]
unsafe fn rows_of<D: Dot, const ROWS: usize>(block: &Operands, into: &mut [i32]) {
    const GROUP: usize = super::GROUP;
    let (a, stride) = block.a;
    // SAFETY: as the caller promises; `into` has as many numbers as the block.
    unsafe {
        let mut sums = [[D::zero(); VECTORS]; ROWS];
        for group in 0..block.groups {
            let b = block.b.add(group * GROUP * D::LANES * VECTORS);
            let weights: [D::Weights; VECTORS] = [D::weights(b), D::weights(b.add(GROUP * D::LANES))];
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = D::left(a.add(i * stride + group * GROUP));
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    *sums = D::add(*sums, weights, left);
                }
            }
        }
        for (i, sums) in sums.iter().flatten().enumerate() {
            D::store(*sums, into.as_mut_ptr().add(i * D::LANES));
        }
    }
}

/// Loops over arrays.
struct Portable;

#[expect(unsafe_code, reason = "see `Dot`")]
impl Dot for Portable {
    type Sums = [i32; 8];
    type Weights = [[u8; 4]; 8];
    type Left = [i8; 4];
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self::Sums {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> Self::Weights {
        // SAFETY: as the caller promises.
        unsafe { from.cast::<Self::Weights>().read() }
    }

    #[inline(always)]
    unsafe fn left(from: *const i8) -> Self::Left {
        // SAFETY: as the caller promises.
        unsafe { from.cast::<Self::Left>().read() }
    }

    #[inline(always)]
    unsafe fn add(mut sums: Self::Sums, weights: Self::Weights, left: Self::Left) -> Self::Sums {
        for (sum, weights) in sums.iter_mut().zip(weights) {
            for (weight, left) in weights.into_iter().zip(left) {
                *sum += i32::from(weight) * i32::from(left);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn store(sums: Self::Sums, to: *mut i32) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<Self::Sums>().write(sums) }
    }
}
