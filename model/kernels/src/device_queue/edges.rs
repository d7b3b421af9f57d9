//! Edges of a graph that is being recorded, by functions of CUDA 12.3 and later.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use cubecl_environment::stream::StreamId;
use cudarc::driver::sys::{CUgraph, CUgraphNode, CUstream};
use libloading::Library;

use super::{Server, compute_queue, is_recording};

const SUCCESS: c_int = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`
const ACTIVE: c_int = 1;

/// `CUgraphEdgeData`
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

/// The node behind starts once the node in front has ended.
const TIGHT: Edge = Edge { from_port: 0, to_port: 0, kind: 0, reserved: [0; 5] };
/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC` and `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`: the kernel behind starts once the blocks of
/// the kernel in front have said so, or ended.
const LOOSE: Edge = Edge { from_port: 1, kind: 1, ..TIGHT };

/// Functions of the driver, under the names that CUDA 12.3 gave them.
struct Driver {
    capture_info: unsafe extern "C" fn(
        CUstream,
        *mut c_int,
        *mut u64,
        *mut CUgraph,
        *mut *const CUgraphNode,
        *mut *const Edge,
        *mut usize,
    ) -> c_int,
    dependencies: unsafe extern "C" fn(CUgraphNode, *mut CUgraphNode, *mut Edge, *mut usize) -> c_int,
    remove: unsafe extern "C" fn(CUgraph, *const CUgraphNode, *const CUgraphNode, *const Edge, usize) -> c_int,
    add: unsafe extern "C" fn(CUgraph, *const CUgraphNode, *const CUgraphNode, *const Edge, usize) -> c_int,
    node_type: unsafe extern "C" fn(CUgraphNode, *mut c_int) -> c_int,
    _library: Library,
}

impl Driver {
    /// The driver's functions; `None` if it is older.
    fn get() -> Option<&'static Self> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: the process has the driver open already; the types follow `cuda.h`, and the library outlives the pointers.
        unsafe {
            let library = Library::new(name).ok()?;
            Some(Self {
                capture_info: *library.get("cuStreamGetCaptureInfo_v3").ok()?,
                dependencies: *library.get("cuGraphNodeGetDependencies_v2").ok()?,
                remove: *library.get("cuGraphRemoveDependencies_v2").ok()?,
                add: *library.get("cuGraphAddDependencies_v2").ok()?,
                node_type: *library.get("cuGraphNodeGetType").ok()?,
                _library: library,
            })
        }
    }

    /// Returns the graph that `queue` is recorded into, and its last node.
    fn last_node(&self, queue: CUstream) -> Option<(CUgraph, CUgraphNode)> {
        let (mut status, mut id, mut graph) = (0, 0, null_mut());
        let (mut nodes, mut edges, mut n) = (null(), null(), 0);
        // SAFETY: the queue exists, and every pointer is to a variable of its type.
        let result =
            unsafe { (self.capture_info)(queue, &mut status, &mut id, &mut graph, &mut nodes, &mut edges, &mut n) };
        // SAFETY: the driver says how many nodes there are, and keeps them until the next call for this queue.
        (result == SUCCESS && status == ACTIVE && n == 1).then(|| (graph, unsafe { *nodes }))
    }

    /// Returns the node in front of `node`, if it is a single one behind a tight edge.
    fn front_of(&self, node: CUgraphNode) -> Option<CUgraphNode> {
        let (mut fronts, mut edges, mut n) = ([null_mut(); 2], [TIGHT; 2], 2);
        // SAFETY: the node exists, and there is room for `n` nodes and edges.
        let result = unsafe { (self.dependencies)(node, fronts.as_mut_ptr(), edges.as_mut_ptr(), &mut n) };
        (result == SUCCESS && n == 1 && edges[0] == TIGHT).then_some(fronts[0])
    }

    fn is_kernel(&self, node: CUgraphNode) -> bool {
        let mut kind = -1;
        // SAFETY: the node exists. 0 is `CU_GRAPH_NODE_TYPE_KERNEL`.
        unsafe { (self.node_type)(node, &mut kind) == SUCCESS && kind == 0 }
    }
}

/// Loosens the edge in front of the last kernel that `stream` has recorded, if a kernel is in front of it. An older driver, or a stream
/// that does not record, leaves everything as it was.
pub(crate) fn loosen_last_edge(server: &mut Server, stream: StreamId) {
    if !is_recording(server, stream) {
        return;
    }
    let Some((queue, driver)) = compute_queue(server, stream).zip(Driver::get()) else { return };
    let Some((graph, node)) = driver.last_node(queue) else { return };
    let Some(front) = driver.front_of(node).filter(|front| driver.is_kernel(*front) && driver.is_kernel(node)) else {
        return;
    };
    // SAFETY: both nodes are in the graph, with this edge between them. An edge that cannot be loosened becomes tight again.
    unsafe {
        if (driver.remove)(graph, &front, &node, &TIGHT, 1) == SUCCESS
            && (driver.add)(graph, &front, &node, &LOOSE, 1) != SUCCESS
        {
            let _ = (driver.add)(graph, &front, &node, &TIGHT, 1);
        }
    }
}
