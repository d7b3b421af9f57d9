//! The kernels, compiled without a device.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;

use super::gemm;
use crate::activation::Activation;
use crate::gpu::mma_f32::Arithmetic;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::{
    GemmSizeCompilationArg, OperandsCompilationArg, ResultsCompilationArg, SplitKSizeCompilationArg,
};
use crate::linear::gpu::shared::config::{Batch, Epilogue, GemmConfig, Output, Sums};

const DTYPES: [(&str, DType); 2] = [("bf16", DType::BF16), ("f16", DType::F16)];

/// Every epilogue and layout, rounded, in f32, and added to the output.
fn configs() -> Vec<(String, GemmConfig)> {
    let stored = GemmConfig {
        layout: Layout::NN,
        batch: None,
        output: Output::Rounded { bias: true, epilogue: Epilogue::Store },
        tile_n: 256,
        columns: 256,
        half_tiles: false,
        stages: 3,
        panels: 4,
        ragged: true,
        group_m: 16,
        arithmetic: Arithmetic::Sixteen,
    };
    let with = |epilogue| GemmConfig { output: Output::Rounded { bias: true, epilogue }, ..stored };
    let activated = |activation, keeps_input| GemmConfig {
        ragged: false,
        ..with(Epilogue::Activation { activation, keeps_input })
    };
    let narrow = |epilogue| GemmConfig { tile_n: 128, columns: 128, stages: 4, panels: 2, ..with(epilogue) };
    let three_panels =
        |layout, output| GemmConfig { layout, tile_n: 192, columns: 192, stages: 4, panels: 3, output, ..stored };
    let no_bias = Output::Rounded { bias: false, epilogue: Epilogue::Store };

    let mut configs = vec![
        ("nn-gelu-tanh-kept".into(), activated(Activation::GeluTanh, true)),
        ("nn-gelu-kept".into(), activated(Activation::Gelu, true)),
        ("nn-silu".into(), activated(Activation::Silu, false)),
        ("nn-bias-relu".into(), with(Epilogue::Relu)),
        ("nn-bias-relu-narrow".into(), narrow(Epilogue::Relu)),
        ("nn-bias-residual".into(), with(Epilogue::AddResidual)),
        ("nn-bias-residual-narrow".into(), narrow(Epilogue::AddResidual)),
        ("nn-half-tiles-deep".into(), GemmConfig { half_tiles: true, stages: 4, panels: 2, output: no_bias, ..stored }),
    ];

    let residual = Output::Rounded { bias: true, epilogue: Epilogue::AddResidual };
    configs.push(("nn-bias-residual-192".into(), three_panels(Layout::NN, residual)));
    configs.push(("nt-192".into(), three_panels(Layout::NT, no_bias)));
    configs.push(("tn-f32-192".into(), three_panels(Layout::TN, Output::Sums(Sums::Write))));

    // Muon's, of matrices of 768 rows.
    let batch = Some(Batch { rows: 768, b_rows: 768 });
    for (name, layout) in [("nn", Layout::NN), ("nt", Layout::NT)] {
        configs.push((format!("{name}-batch"), GemmConfig { layout, batch, ragged: false, output: no_bias, ..stored }));
    }
    for (name, layout) in [("nn", Layout::NN), ("nt", Layout::NT), ("tn", Layout::TN)] {
        let sums = |sums| GemmConfig { output: Output::Sums(sums), stages: 4, ..stored };
        let cases = [
            ("bias", stored),
            ("bias-half-tiles", GemmConfig { half_tiles: true, ..stored }),
            ("f32-split-k", sums(Sums::SplitK)),
            ("f32", sums(Sums::Write)),
            ("f32-accumulate", sums(Sums::Accumulate)),
        ];
        configs.extend(cases.map(|(case, config)| (format!("{name}-{case}"), GemmConfig { layout, ..config })));
    }
    configs
}

pub(in crate::linear::gpu) fn offline_kernels() -> Vec<Compiled> {
    configs().into_iter().flat_map(|(case, config)| DTYPES.map(|dtype| product(&case, config, dtype))).collect()
}

fn product(case: &str, config: GemmConfig, (name, dtype): (&str, DType)) -> Compiled {
    let (launch, properties, target) = settings(config.threads());
    let kernel = gemm::Gemm::new(
        launch,
        properties,
        target,
        OperandsCompilationArg { a: (), b: () },
        ResultsCompilationArg { c: (), auxiliary: () },
        buffer(),
        buffer(),
        GemmSizeCompilationArg { m: (), n: (), pitch: (), k_tiles: () },
        SplitKSizeCompilationArg { slices: (), slice_len: (), tail_slices: () },
        config,
        dtype_to_storage_type(dtype),
    );
    Compiled::new(format!("linear/gemm/{case}-{name}"), kernel)
}
