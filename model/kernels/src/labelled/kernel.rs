//! The rows with labels on CubeCL devices: one block, which reads the labels twice.

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{LabelledOps, record};
use crate::gpu::memory::empty;
use crate::gpu::scan::{SCAN_UNITS, scan};

const WARPS: usize = SCAN_UNITS as usize / 32;

/// Writes the numbers of `len` rows to `found`: those with a label other than `ignored`, then the others.
#[cube(launch_unchecked)]
fn labelled_rows_kernel(labels: &[i32], found: &mut [i32], rows: u32, len: u32, ignored: i32) {
    let mut of_warps = Shared::<[u32]>::new_slice(WARPS);
    let mut own = 0u32.runtime();
    let mut row = UNIT_POS;
    while row < rows {
        own += u32::cast_from(labels[row as usize] != ignored);
        row += SCAN_UNITS;
    }
    let counted = scan(own, &mut of_warps).total;
    sync_cube();

    // How many rows before this turn have a label that counts.
    let mut before = 0u32.runtime();
    let turns = rows.div_ceil(SCAN_UNITS);
    for turn in 0..turns {
        let row = turn * SCAN_UNITS + UNIT_POS;
        let mut counts = 0u32.runtime();
        if row < rows {
            counts = u32::cast_from(labels[row as usize] != ignored);
        }
        let prefix = scan(counts, &mut of_warps);
        let counted_before = before + prefix.before;
        let place = select(counts == 1, counted_before, counted + row - counted_before);
        if row < rows && place < len {
            found[place as usize] = i32::cast_from(row);
        }
        before += prefix.total;
        // All threads have read the sums of the warps.
        sync_cube();
    }
}

impl LabelledOps for CubeBackend {
    fn labelled_rows(labels: CubeTensor, ignored: i32, len: usize) -> CubeTensor {
        let _call = record(&labels, len);
        assert!(labels.dtype == DType::I32, "labels of {:?}", labels.dtype);
        let labels = into_contiguous(labels);
        let (found, rows) = (empty(&labels, [len], DType::I32), labels.meta.shape()[0] as u32);
        // SAFETY: rows and places are guarded; every place below `len` is written, since `len` is at most `rows`.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            labelled_rows_kernel::launch_unchecked(
                &found.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(SCAN_UNITS),
                labels.into_buffer_arg(),
                found.clone().into_buffer_arg(),
                rows,
                len as u32,
                ignored,
            );
        }
        found
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (launch, properties, target) = settings(SCAN_UNITS);
            #[rustfmt::skip]
            let rows = labelled_rows_kernel::LabelledRowsKernel::new(
                launch, properties, target, buffer(), buffer(), (), (), (),
            );
            vec![Compiled::new("labelled/rows", rows)]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
