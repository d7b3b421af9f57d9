use std::sync::OnceLock;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;

use super::gradient::{ChunkCompilationArg, cross_entropy_backward, cross_entropy_both};
use super::loss::cross_entropy_forward;
use super::row::Row;
use super::{LossCompilationArg, UNITS, UNITS_TWICE};
use crate::gpu::constant::Constant;
use crate::gpu::offline::{Compiled, buffer, settings};

/// The kernels that `ptx.lock` records.
pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let b = buffer;
        let loss = || LossCompilationArg { rows: (), smoothing: (), ignored: () };
        let chunk = || ChunkCompilationArg { first: (), count: (), loss: loss(), scale: () };
        let mut kernels = Vec::new();
        for (name, dtype) in [("bf16", DType::BF16), ("f16", DType::F16)] {
            let dtype = dtype_to_storage_type(dtype);
            let capped = Some(Constant::new(30.0));
            for (vectors, rest, streamed, softcap) in [
                (6288, 0, true, None),
                (6282, 1, true, None),
                (4000, 0, true, None),
                (6288, 0, false, None),
                (6282, 1, true, capped),
            ] {
                let row = |units| Row { vectors, rest, pitch: vectors + 16, units, slots: 0, softcap };
                let both = if streamed { row(UNITS_TWICE).streamed() } else { row(UNITS_TWICE) };
                assert_eq!(both.slots > 0, streamed);
                let rest = if rest > 0 { "-and-rest" } else { "" };
                let bound = if softcap.is_some() { "-softcap" } else { "" };
                let case = format!("{vectors}-vectors{rest}{bound}");

                let (launch, properties, target) = settings(UNITS_TWICE);
                #[rustfmt::skip]
                let kernel = cross_entropy_both::CrossEntropyBoth::new(
                    launch, properties, target, b(), b(), b(), b(), chunk(), 8, both, dtype,
                );
                let streaming = if streamed { "-streamed" } else { "" };
                kernels.push(Compiled::new(format!("cross_entropy/both/{case}{streaming}-{name}"), kernel));
                if !streamed {
                    continue;
                }
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let kernel = cross_entropy_forward::CrossEntropyForward::new(
                    launch, properties, target, b(), b(), b(), (), loss(), 8, row(UNITS), dtype,
                );
                kernels.push(Compiled::new(format!("cross_entropy/forward/{case}-{name}"), kernel));
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let kernel = cross_entropy_backward::CrossEntropyBackward::new(
                    launch, properties, target, b(), b(), b(), b(), b(), loss(), 8, row(UNITS), dtype,
                );
                kernels.push(Compiled::new(format!("cross_entropy/backward/{case}-{name}"), kernel));
            }
        }
        kernels
    })
}

#[test]
fn kernels_compile_without_a_device() {
    // Kernels that need libdevice for a logarithm are skipped where there is none; the others must be there.
    let compiled = offline_kernels().iter().filter(|kernel| kernel.ptx.is_some());
    assert!(compiled.count() > 0);
}

#[test]
fn rows_stream_where_two_fit() {
    let row = |vectors, rest| Row { vectors, rest, pitch: vectors + 1, units: UNITS_TWICE, slots: 0, softcap: None };
    let slots = |vectors, rest| row(vectors, rest).streamed().slots;
    // The vocabularies of GPT-2 and of the translator, one too long for two rows, and one of a few tokens.
    assert_eq!([slots(6288, 0), slots(6282, 1), slots(4000, 0), slots(6656, 1), slots(0, 3)], [2, 2, 3, 0, 3]);
}
