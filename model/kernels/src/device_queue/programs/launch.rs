//! Launches of [`Program`]s, on the device's thread and in the order of CubeCL's own launches.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cubecl::device::DeviceId;
use cubecl::device_handle::DeviceHandle;
use cubecl::ir::AddressType;
use cubecl::server::{BufferBinding, ServerError};
use cubecl::zspace::{shape, strides};
use cubecl::{CubeKernel, InfoBuilder, ScalarArgType};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::stream::StreamId;
use cubecl_server::server::ServerStorage;
use cubecl_server::stream::{FailureStore, WriteScoped};
use cudarc::driver::result::launch_kernel;
use cudarc::driver::sys;

use super::program::{Program, in_words, is_collected};
use crate::device_queue::{Server, compute_queue};

/// Columns of a box: 128 bytes.
const COLUMNS: u32 = 64;

/// A matrix of 16-bit numbers that TMA moves in boxes of 64 columns, with the swizzle of lines of 128 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boxes {
    pub(crate) is_bf16: bool,
    /// Rows and columns of the matrix.
    pub(crate) shape: [usize; 2],
    /// Elements from one row to the next.
    pub(crate) pitch: usize,
    /// Rows of a box.
    pub(crate) rows: usize,
}

impl Boxes {
    /// Returns the map of the matrix at `address`.
    fn map(&self, address: u64) -> Result<sys::CUtensorMap, String> {
        use sys::CUtensorMapDataType::{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16};
        let element = if self.is_bf16 { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 } else { CU_TENSOR_MAP_DATA_TYPE_FLOAT16 };
        let [rows, columns] = self.shape.map(|n| n as u64);
        let mut map = MaybeUninit::uninit();

        // SAFETY: shape, box and strides of elements have two numbers each, and the distance between rows is one.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                element,
                2,
                address as *mut c_void,
                [columns, rows].as_ptr(),
                &(2 * self.pitch as u64),
                [COLUMNS, self.rows as u32].as_ptr(),
                [1u32, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()
            .map_err(in_words)?;
            Ok(map.assume_init())
        }
    }
}

enum Argument {
    Buffer(BufferBinding),
    Matrix(BufferBinding, Boxes),
}

/// The arguments of a launch, in the order of the kernel's parameters. The ones of a kernel that takes matrices end as CubeCL's do: with
/// the address of their sizes, which no such kernel reads, and a block of numbers.
#[derive(Default)]
pub(crate) struct Arguments {
    arguments: Vec<Argument>,
    info: InfoBuilder,
}

impl Arguments {
    /// Adds a buffer of `len` elements, as the kernel counts them.
    pub(crate) fn add_buffer(&mut self, binding: BufferBinding, len: usize) {
        self.info.metadata.register_buffer(len as u64, AddressType::U32);
        self.arguments.push(Argument::Buffer(binding));
    }

    /// Adds the map of a matrix.
    pub(crate) fn add_matrix(&mut self, binding: BufferBinding, boxes: Boxes) {
        let ([rows, columns], pitch) = (boxes.shape, boxes.pitch);
        let (shape, strides) = (shape![rows, columns], strides![pitch, 1]);
        self.info.metadata.register_tensor((rows * pitch) as u64, shape, strides, AddressType::U32);
        self.arguments.push(Argument::Matrix(binding, boxes));
    }

    /// Adds a number.
    pub(crate) fn add_number<N: ScalarArgType>(&mut self, number: N) {
        self.info.scalars.push(number);
    }

    /// Launches `kernel` on `device`, in `blocks` blocks. If that fails, `written` is unwritten.
    ///
    /// # Safety
    /// As for CubeCL's `launch_unchecked`. The arguments are the kernel's, and `written` has all buffers that it writes.
    pub(crate) unsafe fn launch(
        mut self,
        device: DeviceId,
        kernel: impl CubeKernel,
        blocks: (u32, u32, u32),
        written: Vec<BufferBinding>,
    ) {
        let info = self.info.finish(AddressType::U32).data;
        let (arguments, stream) = (self.arguments, StreamId::current());
        let kernel: Arc<dyn CubeKernel> = Arc::new(kernel);
        if is_collected(device, &kernel) {
            return;
        }
        DeviceHandle::<Server>::new(device).submit(move |server| {
            // Memory that a failure claims is written anew.
            server.write_streams().written(written.iter());
            let program = Program::of(device, &*kernel);
            let launched = program.and_then(|program| enqueue(server, stream, &arguments, &info, &program, blocks));
            if let Err(reason) = launched {
                let unwritten = ServerError::Generic { reason, backtrace: BackTrace::capture() };
                server.write_streams().taint(unwritten, written.iter());
            }
        });
    }
}

/// Enqueues a launch on the device's thread.
fn enqueue(
    server: &mut Server,
    stream: StreamId,
    arguments: &[Argument],
    info: &[u64],
    program: &Program,
    blocks: (u32, u32, u32),
) -> Result<(), String> {
    // Memory stays where it is while it is held. Taking it makes this stream wait for the streams that own it, and the context current.
    let mut held = Vec::new();
    let mut addresses = Vec::new();
    let mut maps = Vec::new();
    for argument in arguments {
        let (Argument::Buffer(binding) | Argument::Matrix(binding, _)) = argument;
        let memory = server.get_resource(binding.clone(), stream).map_err(in_words)?;
        let address = memory.resource().ptr;
        held.push(memory);
        addresses.push(address);
        if let Argument::Matrix(_, boxes) = argument {
            maps.push(boxes.map(address)?);
        }
    }

    let (mut next_map, sizes) = (maps.iter(), 0u64);
    let mut parameters: Vec<*mut c_void> = Vec::new();
    for (argument, address) in arguments.iter().zip(&addresses) {
        parameters.push(match argument {
            Argument::Buffer(_) => (&raw const *address).cast_mut().cast(),
            Argument::Matrix(..) => (&raw const *next_map.next().expect("a map for each matrix")).cast_mut().cast(),
        });
    }
    if !maps.is_empty() {
        parameters.push((&raw const sizes).cast_mut().cast());
    }
    parameters.push(info.as_ptr().cast_mut().cast());

    let (threads, memory) = (program.threads, program.shared_memory);
    let queue = compute_queue(server, stream).ok_or("its stream does not exist")?;
    // SAFETY: the caller of the launch passes the kernel's arguments, and the parameters live until the driver has read them.
    unsafe {
        launch_kernel(program.function, blocks, (threads, 1, 1), memory, queue, &mut parameters).map_err(in_words)
    }
}
