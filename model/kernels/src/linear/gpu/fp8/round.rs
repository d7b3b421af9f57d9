//! Rounding matrices to FP8 on a GPU: a pass for the largest magnitude, and a pass that rounds.
//!
//! `wgmma` takes FP8 operands along the summed dimension only. The second pass therefore writes a matrix as it lies, its
//! transpose, or both. Two FP8 numbers lie in an element of 16 bits, so that tensors, tensor maps and shared memory are as in
//! 16-bit products.
//!
//! ```text
//! x [M, K] -- largest --> parts [blocks] -- round --> straight [M, K / 2], across [K, M / 2], scale [1]
//! ```

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::fp8::{Fp8, MAX_SCALE};
use crate::gpu::hardware::multiprocessors;
use crate::gpu::instruction::{pair_of_e4m3, pair_of_e5m2};
use crate::gpu::memory::{addressable, empty, empty_pitched, row_pitch};

/// Threads of a block of both passes.
const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;
/// Blocks of the first pass per multiprocessor.
const BLOCKS_EACH: u32 = 4;
/// Rows that a thread of the first pass reads at once, so that enough bytes are on their way.
const ROWS_AT_ONCE: u32 = 4;
/// Rows and columns of a block of the second pass.
const ROWS: u32 = 128;
const COLUMNS: u32 = 64;
/// Vectors of eight numbers across a block.
const OCTS: u32 = COLUMNS / 8;
/// Words of a column of a block in shared memory, and one more: threads that write a column use different banks.
const COLUMN_PITCH: u32 = ROWS / 4 + 1;
/// The bits of a bf16 number's magnitude, where an f32 number has them.
const MAGNITUDE: u32 = 0x7fff_0000;
const INFINITY: u32 = f32::INFINITY.to_bits();
const NAN: u32 = f32::NAN.to_bits();

/// Eight bf16 numbers.
type Words = Vector<u32, Const<4>>;
/// Eight FP8 numbers.
type Codes = Vector<u32, Const<2>>;

/// A matrix of bf16.
#[derive(CubeType, CubeLaunch)]
struct Size {
    rows: u32,
    /// Vectors of eight in a row, and from one row to the next.
    octs: u32,
    pitch: u32,
}

/// Where rounded numbers go: bytes as words.
#[derive(CubeType, CubeLaunch)]
struct Rounded {
    straight: Box<[Codes]>,
    across: Box<[u32]>,
    scale: Box<[f32]>,
    /// Vectors from one row of `straight` to the next.
    straight_pitch: u32,
    /// Words from one row of `across` to the next.
    across_pitch: u32,
}

/// What the second pass is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoundConfig {
    pub(crate) format: Fp8,
    pub(crate) straight: bool,
    pub(crate) across: bool,
}

/// Returns the larger of `largest` over the block, on each thread.
#[cube]
fn cube_max(largest: u32) -> u32 {
    let mut of_warps = Shared::<[u32]>::new_slice(comptime![WARPS as usize]);
    let of_warp = plane_max(largest);
    if UNIT_POS_PLANE == 0 {
        of_warps[(UNIT_POS / 32) as usize] = of_warp;
    }
    sync_cube();
    let mut all = of_warps[0];
    #[unroll]
    for warp in 1..WARPS {
        all = max(all, of_warps[comptime![warp as usize]]);
    }
    all
}

/// Writes the bits of the largest magnitude of every `CUBE_COUNT`th row. NaN counts as the largest.
#[cube(launch_unchecked)]
fn fp8_largest(x: &[Words], parts: &mut [u32], size: Size) {
    let mut largest = 0u32.runtime();
    let mut row = CUBE_POS as u32;
    while row < size.rows {
        let mut oct = UNIT_POS;
        while oct < size.octs {
            let mut words = Array::<Words>::new(ROWS_AT_ONCE as usize);
            #[unroll]
            for i in 0..ROWS_AT_ONCE {
                // Behind the last row, that row is read again.
                let here = min(row + i * CUBE_COUNT as u32, size.rows - 1);
                words[comptime![i as usize]] = x[here as usize * size.pitch as usize + oct as usize];
            }
            #[unroll]
            for i in 0..ROWS_AT_ONCE {
                #[unroll]
                for nth in 0..4usize {
                    let word = words[comptime![i as usize]].extract(nth);
                    largest = max(largest, max(word & MAGNITUDE, (word << 16) & MAGNITUDE));
                }
            }
            oct += THREADS;
        }
        row += ROWS_AT_ONCE * CUBE_COUNT as u32;
    }

    let of_block = cube_max(largest);
    if UNIT_POS == 0 {
        parts[CUBE_POS] = of_block;
    }
}

/// Returns the power of two by which numbers of at most `largest` (its bits) are multiplied, and its inverse, which is NaN if
/// `largest` is not finite.
#[cube]
fn scales(largest: u32, #[comptime] format: Fp8) -> (f32, f32) {
    let top = comptime![format.largest_exponent() + 254];
    let is_above = select((largest & 0x7f_ffff) > 0x60_0000, 1i32, 0i32);
    let exponent = i32::cast_from(largest >> 23);
    // Biased by 127.
    let up = min(top - exponent - is_above, comptime![MAX_SCALE + 127]);
    let up = select(largest == 0, 127i32, up);
    let down = select(largest >= INFINITY, NAN, u32::cast_from(254 - up) << 23);
    let up = select(largest >= INFINITY, 127i32, up);
    (f32::reinterpret(u32::cast_from(up) << 23), f32::reinterpret(down))
}

/// Returns two numbers in eight bits each, the first one in the lower bits.
#[cube]
fn pair(word: u32, scale: f32, #[comptime] format: Fp8) -> u32 {
    let first = f32::reinterpret(word << 16) * scale;
    let second = f32::reinterpret(word & 0xffff_0000u32) * scale;
    if comptime![format == Fp8::E4M3] {
        u32::cast_from(pair_of_e4m3(second, first))
    } else {
        u32::cast_from(pair_of_e5m2(second, first))
    }
}

/// Rounds the 128 x 64 numbers at (`CUBE_POS_Y`, `CUBE_POS_X`). A thread has four rows of eight numbers.
#[cube(launch_unchecked)]
fn fp8_round(x: &[Words], parts: &[u32], to: &mut Rounded, size: Size, n_parts: u32, #[comptime] cfg: RoundConfig) {
    let (oct, four) = (UNIT_POS % OCTS, UNIT_POS / OCTS);
    let row0 = CUBE_POS_Y * ROWS + 4 * four;
    let at = CUBE_POS_X * OCTS + oct;
    let mut words = Array::<Words>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        let row = row0 + comptime![i as u32];
        words[i] = Words::zeroed();
        if row < size.rows && at < size.octs {
            words[i] = x[row as usize * size.pitch as usize + at as usize];
        }
    }

    let mut largest = 0u32.runtime();
    let mut part = UNIT_POS;
    while part < n_parts {
        largest = max(largest, parts[part as usize]);
        part += THREADS;
    }
    let (up, down) = scales(cube_max(largest), cfg.format);
    if UNIT_POS == 0 && CUBE_POS == 0 {
        to.scale[0] = down;
    }

    let mut codes = Array::<Codes>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        let mut eight = Codes::zeroed();
        #[unroll]
        for half in 0..2usize {
            let first = pair(words[i].extract(comptime![2 * half]), up, cfg.format);
            let second = pair(words[i].extract(comptime![2 * half + 1]), up, cfg.format);
            eight.insert(half, first | (second << 16));
        }
        codes[i] = eight;
        let row = row0 + comptime![i as u32];
        if comptime![cfg.straight] {
            if row < size.rows && at < size.octs {
                to.straight[row as usize * to.straight_pitch as usize + at as usize] = codes[i];
            }
        }
    }
    if comptime![cfg.across] {
        store_across(&codes, to, &size, oct, four);
    }
}

/// Transposes the block's numbers through shared memory, four by four bytes in the registers first.
#[cube]
fn store_across(codes: &Array<Codes>, to: &mut Rounded, size: &Size, oct: u32, four: u32) {
    let mut columns = Shared::<[u32]>::new_slice(comptime![(COLUMNS * COLUMN_PITCH) as usize]);
    #[unroll]
    for half in 0..2usize {
        let (row0, row1) = (codes[0].extract(half), codes[1].extract(half));
        let (row2, row3) = (codes[2].extract(half), codes[3].extract(half));
        let place = (8 * oct + comptime![4 * half as u32]) * COLUMN_PITCH + four;
        // Bytes 0 and 2, then 1 and 3, of two rows each.
        let even_low = (row0 & 0x00ff_00ffu32) | ((row1 & 0x00ff_00ffu32) << 8);
        let even_high = (row2 & 0x00ff_00ffu32) | ((row3 & 0x00ff_00ffu32) << 8);
        let odd_low = ((row0 >> 8) & 0x00ff_00ffu32) | (row1 & 0xff00_ff00u32);
        let odd_high = ((row2 >> 8) & 0x00ff_00ffu32) | (row3 & 0xff00_ff00u32);
        columns[place as usize] = (even_low & 0xffffu32) | (even_high << 16);
        columns[(place + COLUMN_PITCH) as usize] = (odd_low & 0xffffu32) | (odd_high << 16);
        columns[(place + 2 * COLUMN_PITCH) as usize] = (even_low >> 16) | (even_high & 0xffff_0000u32);
        columns[(place + 3 * COLUMN_PITCH) as usize] = (odd_low >> 16) | (odd_high & 0xffff_0000u32);
    }
    sync_cube();

    let word = CUBE_POS_Y * comptime![ROWS / 4] + UNIT_POS_PLANE;
    #[unroll]
    for turn in 0..comptime![COLUMNS / WARPS] {
        let within = UNIT_POS / 32 + comptime![turn * WARPS];
        let column = CUBE_POS_X * COLUMNS + within;
        if column < 8 * size.octs && word < to.across_pitch {
            to.across[column as usize * to.across_pitch as usize + word as usize] =
                columns[(within * COLUMN_PITCH + UNIT_POS_PLANE) as usize];
        }
    }
}

/// A matrix rounded to FP8.
#[derive(Clone)]
pub(crate) struct Fp8Matrix {
    pub(crate) format: Fp8,
    /// The matrix and its transpose, two numbers per element; those that were asked for.
    pub(crate) straight: Option<CubeTensor>,
    pub(crate) across: Option<CubeTensor>,
    /// The number by which products are multiplied, `[1]`.
    pub(crate) scale: CubeTensor,
}

/// Rounds `x`, `[M, K]` in bf16 with rows of whole vectors, as it lies or `across` or both.
pub(crate) fn rounded(x: &CubeTensor, format: Fp8, [straight, across]: [bool; 2]) -> Fp8Matrix {
    let x = addressable(x.clone());
    let [rows, columns] = [x.meta.shape()[0], x.meta.shape()[1]];
    let pitch = row_pitch(&x) / 8;
    let size = || SizeLaunch::new(rows as u32, (columns / 8) as u32, pitch as u32);
    let blocks = (multiprocessors(&x.client) * BLOCKS_EACH).min(rows as u32);
    let parts = empty(&x, [blocks as usize], DType::U32);
    let scale = empty(&x, [1], DType::F32);
    // What is not wanted still is an argument.
    let kept = |wanted: bool, [rows, columns]: [usize; 2]| {
        let shape = if wanted { [rows, columns.div_ceil(2)] } else { [1, 1] };
        empty_pitched(&x, shape, DType::BF16)
    };
    let (as_it_lies, transposed) = (kept(straight, [rows, columns]), kept(across, [columns, rows]));
    let (straight_pitch, across_pitch) = (row_pitch(&as_it_lies) / 4, row_pitch(&transposed) / 2);
    let n_elements = |matrix: &CubeTensor| matrix.meta.shape()[0] * row_pitch(matrix);

    // SAFETY: loads and stores are guarded by rows and columns, and each buffer has as many elements as its rows have pitches.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        let words = || BufferArg::from_raw_parts(x.handle.clone(), rows * pitch);
        fp8_largest::launch_unchecked(
            &x.client,
            CubeCount::Static(blocks, 1, 1),
            CubeDim::new_1d(THREADS),
            words(),
            parts.clone().into_buffer_arg(),
            size(),
        );
        fp8_round::launch_unchecked(
            &x.client,
            CubeCount::Static(columns.div_ceil(COLUMNS as usize) as u32, rows.div_ceil(ROWS as usize) as u32, 1),
            CubeDim::new_1d(THREADS),
            words(),
            parts.into_buffer_arg(),
            RoundedLaunch::new(
                BufferArg::from_raw_parts(as_it_lies.handle.clone(), n_elements(&as_it_lies) / 4),
                BufferArg::from_raw_parts(transposed.handle.clone(), n_elements(&transposed) / 2),
                scale.clone().into_buffer_arg(),
                straight_pitch as u32,
                across_pitch as u32,
            ),
            size(),
            blocks,
            RoundConfig { format, straight, across },
        );
    }
    Fp8Matrix { format, straight: straight.then_some(as_it_lies), across: across.then_some(transposed), scale }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> Vec<Compiled> {
        let (launch, properties, target) = settings(THREADS);
        let size = || SizeCompilationArg { rows: (), octs: (), pitch: () };
        let largest = fp8_largest::Fp8Largest::new(launch, properties, target, buffer(), buffer(), size());
        let rounds = [
            ("straight-e4m3", RoundConfig { format: Fp8::E4M3, straight: true, across: false }),
            ("across-e4m3", RoundConfig { format: Fp8::E4M3, straight: false, across: true }),
            ("both-e5m2", RoundConfig { format: Fp8::E5M2, straight: true, across: true }),
        ];
        let round = |(case, config): (&str, RoundConfig)| {
            let (launch, properties, target) = settings(THREADS);
            let to = RoundedCompilationArg {
                straight: buffer(),
                across: buffer(),
                scale: buffer(),
                straight_pitch: (),
                across_pitch: (),
            };
            let kernel =
                fp8_round::Fp8Round::new(launch, properties, target, buffer(), buffer(), to, size(), (), config);
            Compiled::new(format!("linear/fp8/round-{case}"), kernel)
        };
        [Compiled::new("linear/fp8/round-largest", largest)].into_iter().chain(rounds.map(round)).collect()
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for Compiled { label, ptx, .. } in offline_kernels() {
            let Some(code) = ptx else { return };
            let converts = code.contains("cvt.rn.satfinite.e4m3x2.f32") || code.contains("cvt.rn.satfinite.e5m2x2.f32");
            assert_eq!(converts, label != "linear/fp8/round-largest", "{label}");
        }
    }
}
