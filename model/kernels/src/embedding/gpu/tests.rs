use std::sync::OnceLock;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;

use super::UNITS;
use super::lookup::{CallCompilationArg, LookupConfig, look_up};
use super::sort::{begin, count, deal, settle};
use super::sum::{RowsCompilationArg, SUM_UNITS, SumsCompilationArg, accumulate, join};
use crate::dropout::kernel::DropArgsCompilationArg;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::gpu::scan::SCAN_UNITS;

/// The kernels that `ptx.lock` records.
pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let b = buffer;
        let drop = || DropArgsCompilationArg { site: (), limit: (), scale: () };
        let call = || CallCompilationArg { n: (), length: (), drop: drop(), scale: () };
        let mut kernels = Vec::new();

        let (launch, properties, target) = settings(SCAN_UNITS);
        let kernel = begin::Begin::new(launch, properties, target, b(), ());
        kernels.push(Compiled::new("embedding/sort/begin", kernel));
        let (launch, properties, target) = settings(UNITS);
        let kernel = count::Count::new(launch, properties, target, b(), b(), ());
        kernels.push(Compiled::new("embedding/sort/count", kernel));
        let (launch, properties, target) = settings(UNITS);
        let kernel = deal::Deal::new(launch, properties, target, b(), b(), b(), ());
        kernels.push(Compiled::new("embedding/sort/deal", kernel));
        let (launch, properties, target) = settings(UNITS);
        let kernel = settle::Settle::new(launch, properties, target, b(), b(), b(), b(), b(), b(), ());
        kernels.push(Compiled::new("embedding/sort/settle", kernel));

        let config = LookupConfig { vectors: 96, has_positions: true, is_dropped: false, early: true };
        let (launch, properties, target) = settings(UNITS);
        let dtype = dtype_to_storage_type(DType::BF16);
        #[rustfmt::skip]
        let early = look_up::LookUp::new(
            launch, properties, target, b(), b(), b(), b(), b(), call(), 8, config, dtype,
        );
        kernels.push(Compiled::new("embedding/forward/early-bf16", early));
        for (name, dtype, vectors) in [("96-vectors-bf16", DType::BF16, 96), ("7-vectors-f32", DType::F32, 7)] {
            let dtype = dtype_to_storage_type(dtype);
            let config = LookupConfig { vectors, has_positions: true, is_dropped: true, early: false };
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let lookup = look_up::LookUp::new(
                launch, properties, target, b(), b(), b(), b(), b(), call(), 8, config, dtype,
            );
            kernels.push(Compiled::new(format!("embedding/forward/{name}"), lookup));
            let (launch, properties, target) = settings(SUM_UNITS);
            let rows = RowsCompilationArg { dy: b(), order: b(), sorted: b(), state: b() };
            let sums = SumsCompilationArg { out: b(), head: b(), tail: b() };
            #[rustfmt::skip]
            let sums = accumulate::Accumulate::new(
                launch, properties, target, rows, sums, (), drop(), 8, vectors, true, dtype,
            );
            kernels.push(Compiled::new(format!("embedding/backward/accumulate-{name}"), sums));
            let (launch, properties, target) = settings(SUM_UNITS);
            let join = join::Join::new(launch, properties, target, b(), b(), b(), b(), (), 8, vectors, dtype);
            kernels.push(Compiled::new(format!("embedding/backward/join-{name}"), join));
        }
        kernels
    })
}

#[test]
fn kernels_compile_without_a_device() {
    for kernel in offline_kernels() {
        assert!(kernel.ptx.is_some(), "{}", kernel.label);
    }
}
