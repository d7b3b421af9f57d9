//! Which operator a kernel belongs to, and which call of it.
//!
//! A kernel is named after its function in `kiln-kernels`, then the types and a hash of what it was compiled for
//! (`gemm_bf16_0a1b2c3d`). A test compares the table with the functions. The kernels of a group run on one stream in the order in
//! which their operators were called. If there are equally many kernels for each call, each call gets its own.

use std::time::Duration;

use kiln_kernels::calls::Call;

use super::gpu::{GpuRecord, GpuRecords, GpuWork};
use super::rows::Measured;
use super::sizes_in_words;

/// What the kernels of NCCL are called.
const EXCHANGE: &str = "exchange (NCCL)";

/// Kernels of Kiln that compute one operator, or several that share a kernel.
struct Group {
    /// What the kernels are called where the call is not known.
    title: &'static str,
    /// The operators, as [`Call::operator`] names them.
    operators: &'static [&'static str],
    /// The functions of the kernels.
    kernels: &'static [&'static str],
}

const fn group(title: &'static str, operators: &'static [&'static str], kernels: &'static [&'static str]) -> Group {
    Group { title, operators, kernels }
}

/// All kernels of `kiln-kernels`.
const GROUPS: [Group; 35] = [
    group(
        "linear",
        &["linear NN", "linear NT", "linear TN"],
        &["gemm", "gemm_fp8", "gemm_tf32", "few_rows_nn", "few_rows_nt"],
    ),
    group("linear, operands to FP8", &[], &["fp8_largest", "fp8_round"]),
    group("linear, transposes", &[], &["transpose"]),
    group("linear, sum of slices", &[], &["gemm_add_slices"]),
    group("attention forward", &["attention forward"], &["attention_forward", "attention_in_turns"]),
    group(
        "attention backward",
        &["attention backward"],
        &[
            "one_pass_deltas",
            "one_pass_gradients",
            "one_pass_query_gradient",
            "one_tile_gradients",
            "query_gradient",
            "key_value_gradient",
            "key_or_value_gradient",
            "wide_query_gradient",
            "wide_key_value_gradient",
            "relative_gradient",
            "sum_by_distance",
        ],
    ),
    group("norm forward", &["norm forward"], &["norm_forward"]),
    group("norm backward", &["norm backward"], &["norm_backward"]),
    group("norm backward, parameters", &[], &["reduce_partial"]),
    group("norm of heads forward", &["norm of heads forward"], &["norm_heads_forward"]),
    group("norm of heads backward", &["norm of heads backward"], &["norm_heads_backward"]),
    group("activation forward", &["activation forward"], &["activation_forward"]),
    group("column sum", &["activation backward", "column sum"], &["column_pass"]),
    group("column sum, of slices", &[], &["column_add_slices"]),
    group("swiglu forward", &["swiglu forward"], &["swiglu_forward"]),
    group("swiglu backward", &["swiglu backward"], &["swiglu_backward"]),
    group("rotary", &["rotary"], &["rotate"]),
    group("cross-entropy forward", &["cross-entropy forward"], &["cross_entropy_forward"]),
    group("cross-entropy backward", &["cross-entropy backward"], &["cross_entropy_backward"]),
    group("cross-entropy forward, backward", &["cross-entropy forward, backward"], &["cross_entropy_both"]),
    group("embedding forward", &["embedding forward"], &["look_up"]),
    group("embedding backward", &["embedding backward"], &["count", "begin", "deal", "settle", "accumulate", "join"]),
    group("dropout", &["dropout"], &["dropout_kernel"]),
    group("dropout, random state", &[], &["set_words"]),
    group("random words", &["random words"], &["random_words_kernel"]),
    group("labelled rows", &["labelled rows"], &["labelled_rows_kernel"]),
    group("row sums", &["row sums"], &["sum_kernel"]),
    group("row argmax", &["row argmax"], &["argmax_kernel"]),
    group("likeliest columns", &["likeliest columns"], &["likeliest_kernel", "best_of_parts", "best_part"]),
    group("attention of a step", &["attention of a step"], &["step_kernel"]),
    group("flat gradients", &["flat gradients"], &["gather"]),
    group("norm of the gradient", &["norm of the gradient"], &["prepare"]),
    group("AdamW", &["AdamW"], &["step", "step_rounded"]),
    group("exchange, sum", &[], &["add_up"]),
    group("inputs of a replay", &[], &["copy", "put_rows"]),
];

/// Whether `name` is the function `function`, compiled for some types.
fn is_of(name: &str, function: &str) -> bool {
    name.strip_prefix(function).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Returns the group of a kernel, by the longest name of a function that it begins with.
fn group_of(name: &str) -> Option<usize> {
    let named = GROUPS.iter().enumerate().flat_map(|(at, group)| group.kernels.iter().map(move |kernel| (at, kernel)));
    let named = named.filter(|(_, kernel)| is_of(name, kernel));
    named.max_by_key(|(_, kernel)| kernel.len()).map(|(at, _)| at)
}

/// Returns what a kernel is called on the time line: its operator.
pub(super) fn title_of(name: &str) -> String {
    match group_of(name) {
        Some(at) => GROUPS[at].title.into(),
        None if name.to_lowercase().contains("nccl") => EXCHANGE.into(),
        None if name.contains("matmul") => "matrix product of Burn".into(),
        None => format!("Burn: {}", without_hash(name)),
    }
}

/// Returns a kernel's name without the hash at its end.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((front, hash)) if hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => front,
        _ => name,
    }
}

/// Returns the seconds of NCCL's kernels.
pub(super) fn secs_of_exchanges(gpu: &GpuRecords) -> f64 {
    let is_exchange =
        |record: &&GpuRecord| matches!(&record.work, GpuWork::Kernel(kernel) if title_of(&kernel.name) == EXCHANGE);
    secs(&gpu.records.iter().filter(is_exchange).collect::<Vec<_>>())
}

fn secs(records: &[&GpuRecord]) -> f64 {
    records.iter().map(|record| record.ended.saturating_duration_since(record.started)).sum::<Duration>().as_secs_f64()
}

/// Returns every kernel, copy and fill by its own name.
pub(super) fn by_kernel(gpu: &GpuRecords) -> Vec<Measured> {
    let measured = gpu.records.iter().map(|record| {
        let (name, sizes) = match &record.work {
            GpuWork::Kernel(kernel) => {
                let words = |sizes: [i32; 3]| sizes.map(|size| size.to_string()).join(" x ");
                let name = format!("{} ({})", title_of(&kernel.name), kernel.name);
                (name, format!("{} of {}", words(kernel.grid), words(kernel.block)))
            }
            GpuWork::Copy { direction, .. } => (format!("copy {direction}"), String::new()),
            GpuWork::Fill { .. } => ("fill".into(), String::new()),
        };
        Measured { name, sizes, secs: secs(&[record]), work: moved(record) }
    });
    measured.collect()
}

/// The bytes that a copy reads and writes, or that a fill writes.
fn moved(record: &GpuRecord) -> Option<[f64; 2]> {
    match record.work {
        GpuWork::Copy { direction: "device to device", bytes } => Some([0.0, 2.0 * bytes as f64]),
        GpuWork::Fill { bytes } => Some([0.0, bytes as f64]),
        // Not bound by the device's memory.
        GpuWork::Copy { .. } | GpuWork::Kernel(_) => None,
    }
}

/// Returns the time of the kernels by operator, with the sizes and the work of the call that each belongs to, where that is known: of `calls`,
/// or in a CUDA graph of `replayed`.
pub(super) fn by_operator(gpu: &GpuRecords, calls: &[Call], replayed: &[Call]) -> Vec<Measured> {
    let in_graph = |record: &GpuRecord| matches!(&record.work, GpuWork::Kernel(kernel) if kernel.graph != 0);
    let (graphs, eager): (Vec<_>, Vec<_>) = gpu.records.iter().partition(|record| in_graph(record));
    let mut measured = of_calls(&eager, calls);
    measured.append(&mut of_calls(&graphs, replayed));
    measured
}

fn of_calls(records: &[&GpuRecord], calls: &[Call]) -> Vec<Measured> {
    let mut in_groups: Vec<Vec<&GpuRecord>> = GROUPS.iter().map(|_| Vec::new()).collect();
    let mut measured = Vec::new();
    for record in records {
        let name = match &record.work {
            GpuWork::Kernel(kernel) => match group_of(&kernel.name) {
                Some(at) => {
                    in_groups[at].push(record);
                    continue;
                }
                None => title_of(&kernel.name),
            },
            GpuWork::Copy { direction, .. } => format!("copy {direction}"),
            GpuWork::Fill { .. } => "fill".into(),
        };
        measured.push(Measured { name, sizes: String::new(), secs: secs(&[record]), work: moved(record) });
    }

    for (group, records) in GROUPS.iter().zip(in_groups) {
        let mut own: Vec<&Call> = calls.iter().filter(|call| group.operators.contains(&call.operator)).collect();
        own.sort_by_key(|call| call.started);
        let n_each = if own.is_empty() { 0 } else { records.len() / own.len() };
        if n_each == 0 || n_each * own.len() != records.len() {
            // Not the kernels of these calls: the time alone is known.
            let unknown =
                |record| Measured { name: group.title.into(), sizes: String::new(), secs: secs(&[record]), work: None };
            measured.extend(records.into_iter().map(unknown));
            continue;
        }
        measured.extend(own.iter().zip(records.chunks(n_each)).map(|(call, records)| Measured {
            name: call.operator.into(),
            sizes: sizes_in_words(&call.sizes),
            secs: secs(records),
            work: Some([call.work.flops, call.work.bytes]),
        }));
    }
    measured
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    use kiln_kernels::calls::Work;

    use super::super::gpu::Kernel;
    use super::*;

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_kernel_has_its_operator() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/kernels/src");
        let mut functions = BTreeSet::new();
        for path in sources(&root) {
            let code = fs::read_to_string(&path).expect("readable");
            for kernel in code.split("#[cube(launch").skip(1) {
                let name = kernel.split("fn ").nth(1).and_then(|rest| rest.split(['<', '(']).next());
                functions.insert(name.expect("a function").to_owned());
            }
        }
        // Measures the peak of a GPU; no operator.
        functions.remove("products");

        let listed: Vec<&str> = GROUPS.iter().flat_map(|group| group.kernels).copied().collect();
        let set: BTreeSet<String> = listed.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(set.len(), listed.len(), "a kernel belongs to one group");
        assert_eq!(functions, set);
    }

    fn kernel(name: &str, began: Instant, micros: [u64; 2]) -> GpuRecord {
        let at = |micros| began + Duration::from_micros(micros);
        let kernel = Kernel {
            name: name.into(),
            grid: [132, 1, 1],
            block: [384, 1, 1],
            registers: 168,
            shared_bytes: 0,
            graph: 0,
        };
        let (started, ended) = (at(micros[0]), at(micros[1]));
        GpuRecord { work: GpuWork::Kernel(kernel), started, ended, stream: 7, correlation: 1 }
    }

    fn call(operator: &'static str, size: usize, began: Instant, micros: u64) -> Call {
        let started = began + Duration::from_micros(micros);
        let work = Work { flops: size as f64, bytes: 2.0 * size as f64 };
        Call {
            operator,
            sizes: vec![size],
            work,
            started,
            ended: started,
            own: Duration::ZERO,
            depth: 0,
            on_device: None,
            live_bytes: None,
        }
    }

    #[test]
    fn kernels_belong_to_the_calls_in_their_order() {
        let began = Instant::now();
        let records = vec![
            kernel("gemm_bf16_0a1b2c3d", began, [10, 20]),
            kernel("gemm_add_slices_bf16_0a1b2c3d", began, [20, 22]),
            kernel("query_gradient_bf16_1", began, [30, 33]),
            kernel("key_value_gradient_bf16_1", began, [33, 38]),
            kernel("gemm_bf16_0a1b2c3e", began, [40, 70]),
            kernel("step_bf16_f32_8_1", began, [80, 81]),
            kernel("step_bf16_f32_8_1", began, [90, 91]),
            kernel("elemwise_fuse_deadbeef", began, [95, 96]),
        ];

        let gpu = GpuRecords { records, ..GpuRecords::default() };
        let calls = [
            // In another order: they are recorded when they return.
            call("linear TN", 8, began, 5),
            call("linear NN", 4, began, 2),
            call("attention backward", 16, began, 3),
            call("AdamW", 32, began, 9),
            call("AdamW", 32, began, 10),
            call("AdamW", 32, began, 11),
        ];

        let measured = by_operator(&gpu, &calls, &[]);
        let found = |name: &str| {
            let of_name = measured.iter().filter(|measured| measured.name == name);
            of_name.map(|it| (it.sizes.as_str(), (it.secs * 1e6).round() as u64, it.work)).collect::<Vec<_>>()
        };
        assert_eq!(found("linear NN"), [("4", 10, Some([4.0, 8.0]))]);
        assert_eq!(found("linear TN"), [("8", 30, Some([8.0, 16.0]))]);
        assert_eq!(found("attention backward"), [("16", 8, Some([16.0, 32.0]))], "two kernels of one call");
        assert_eq!(found("linear, sum of slices"), [("", 2, None)]);
        assert_eq!(found("AdamW"), [("", 1, None), ("", 1, None)], "two kernels of three calls: not known which");
        assert_eq!(found("Burn: elemwise_fuse"), [("", 1, None)]);
        assert_eq!(by_kernel(&gpu)[0].name, "linear (gemm_bf16_0a1b2c3d)");
        assert_eq!((by_kernel(&gpu).len(), by_kernel(&gpu)[0].sizes.as_str()), (8, "132 x 1 x 1 of 384 x 1 x 1"));
    }

    #[test]
    fn kernels_of_graphs_belong_to_the_calls_that_were_replayed() {
        let began = Instant::now();
        let in_graph = |record: GpuRecord| {
            let GpuWork::Kernel(kernel) = record.work else { panic!("a kernel") };
            GpuRecord { work: GpuWork::Kernel(Kernel { graph: 3, ..kernel }), ..record }
        };
        let records = vec![
            kernel("norm_forward_1", began, [0, 1]),
            in_graph(kernel("norm_forward_1", began, [2, 4])),
            in_graph(kernel("norm_forward_1", began, [5, 8])),
        ];
        let gpu = GpuRecords { records, ..GpuRecords::default() };
        let [eager, replayed] = [call("norm forward", 4, began, 0), call("norm forward", 8, began, 0)];
        let found = |measured: Vec<Measured>| -> Vec<_> {
            measured.into_iter().map(|it| (it.sizes, (it.secs * 1e6).round() as u64)).collect()
        };

        let known = by_operator(&gpu, std::slice::from_ref(&eager), &[replayed.clone(), replayed]);
        assert_eq!(found(known), [("4".to_owned(), 1), ("8".to_owned(), 2), ("8".to_owned(), 3)]);
        let unknown = by_operator(&gpu, &[eager], &[]);
        assert_eq!(found(unknown), [("4".to_owned(), 1), (String::new(), 2), (String::new(), 3)]);
    }

    #[test]
    fn a_name_is_found_by_its_longest_function() {
        for (name, title) in [
            ("gemm_add_slices_f32_00000000", "linear, sum of slices"),
            ("gemm", "linear"),
            ("step_f32_f32_8_00000000", "AdamW"),
            ("stepping", "Burn: stepping"),
            ("ncclDevKernel_AllGather_RING_LL", "exchange (NCCL)"),
            ("matmul_entry_f16_00000000", "matrix product of Burn"),
        ] {
            assert_eq!(title_of(name), title, "{name}");
        }
    }
}
