/* Of pygpu, libgpuarray and cuDNN what the C code of Theano's convolutions uses, with counters. */
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/types.h>

struct gpudata {};
struct PyGpuContextObject { void *ctx; };
struct PyGpuArrayObject {
  struct { int typecode; gpudata *data; } ga;
  unsigned nd;
  size_t dims[5];
  ssize_t strides[5];
  PyGpuContextObject *context;
  size_t address;
};
enum { GA_HALF, GA_FLOAT, GA_DOUBLE };
enum { GA_NO_ERROR, GA_C_ORDER };
enum { GA_CTX_PROP_LARGEST_MEMBLOCK, GA_CTX_PROP_UNIQUE_ID };
enum { GPUARRAY_CUDA_WAIT_READ, GPUARRAY_CUDA_WAIT_WRITE };
#define PyGpuArray_NDIM(a) ((a)->nd)
#define PyGpuArray_DIMS(a) ((a)->dims)
#define PyGpuArray_DIM(a, i) ((a)->dims[i])
#define PyGpuArray_STRIDE(a, i) ((a)->strides[i])
#define PyGpuArray_DEV_DATA(a) ((void *)(a)->address)
#define GpuArray_IS_C_CONTIGUOUS(a) true
static int failed = 0, memory_asked = 0, device_asked = 0, timed = 0, fail_timing = 0, used = -1;
static int PyErr_Occurred() { return failed; }
static void PyErr_SetString(int, const char *) { failed = 1; }
static void PyErr_Format(int, const char *, ...) { failed = 1; }
enum { PyExc_ValueError, PyExc_TypeError, PyExc_RuntimeError, PyExc_MemoryError, Py_None };
static void Py_XDECREF(void *) {}
static void Py_INCREF(void *) {}
static int gpuarray_get_elsize(int) { return 4; }
static int GpuArray_memset(void *, int) { return GA_NO_ERROR; }
static int theano_prep_output(PyGpuArrayObject **, unsigned, size_t *, int, int, void *) { return 0; }
static int pygpu_move(PyGpuArrayObject *, PyGpuArrayObject *) { return 0; }
static PyGpuArrayObject *pygpu_empty(unsigned, size_t *, int, int, void *, int) { return nullptr; }
static gpudata *gpudata_alloc(void *, size_t, void *, int, void *) {
  static void *memory;
  return (gpudata *)&memory;
}
static void gpudata_release(gpudata *) {}
static void cuda_enter(void *) {}
static void cuda_exit(void *) {}
static void cuda_wait(void *, int) {}
static void cuda_record(void *, int) {}
static int gpucontext_property(void *, int which, void *answer) {
  if (which == GA_CTX_PROP_LARGEST_MEMBLOCK) {
    memory_asked++;
    *(size_t *)answer = 1 << 20;
  } else {
    device_asked++;
    snprintf((char *)answer, 16, "0000:01:00.0");
  }
  return GA_NO_ERROR;
}

#define CUDNN_MAJOR 9
#define CUDNN_DIM_MAX 8
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS, CUDNN_STATUS_NOT_SUPPORTED };
enum cudnnDataType_t { CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF };
enum cudnnMathType_t { CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH };
enum cudnnConvolutionMode_t { CUDNN_CONVOLUTION, CUDNN_CROSS_CORRELATION };
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW };
struct Shape { int nd, dims[8], strides[8]; };
typedef Shape *cudnnTensorDescriptor_t;
typedef Shape *cudnnFilterDescriptor_t;
struct Descriptor { int pad[2]; };
typedef Descriptor *cudnnConvolutionDescriptor_t;
typedef void *cudnnHandle_t;
struct AlgoRec { int algo; size_t wsSize; cudnnMathType_t mathType; };
static PyGpuArrayObject *forward_output; /* whose shape a convolution of the arrays has */
static const char *cudnnGetErrorString(cudnnStatus_t) { return "failed"; }
static int cudnnGetVersion() { return 91400; }
static cudnnStatus_t cudnnCreateTensorDescriptor(Shape **made) {
  *made = new Shape();
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnCreateFilterDescriptor(Shape **made) {
  return cudnnCreateTensorDescriptor(made);
}
static void cudnnDestroyTensorDescriptor(Shape *one) { delete one; }
static void cudnnDestroyFilterDescriptor(Shape *one) { delete one; }
static cudnnStatus_t cudnnSetTensorNdDescriptor(Shape *one, cudnnDataType_t, int nd, int *dims,
                                                int *strides) {
  one->nd = nd;
  for (int i = 0; i < nd; i++) one->dims[i] = dims[i], one->strides[i] = strides[i];
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnSetFilterNdDescriptor(Shape *one, cudnnDataType_t type, int, int nd,
                                                int *dims) {
  return cudnnSetTensorNdDescriptor(one, type, nd, dims, dims);
}
static cudnnStatus_t cudnnGetTensorNdDescriptor(Shape *one, int, cudnnDataType_t *, int *nd,
                                                int *dims, int *strides) {
  *nd = one->nd;
  for (int i = 0; i < one->nd; i++) dims[i] = one->dims[i], strides[i] = one->strides[i];
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnGetFilterNdDescriptor(Shape *one, int, cudnnDataType_t *type,
                                                cudnnTensorFormat_t *, int *nd, int *dims) {
  int strides[8];
  *type = CUDNN_DATA_FLOAT;
  return cudnnGetTensorNdDescriptor(one, 8, type, nd, dims, strides);
}
static cudnnStatus_t cudnnGetConvolutionNdDescriptor(Descriptor *one, int, int *nd, int *pad,
                                                     int *stride, int *dilation,
                                                     cudnnConvolutionMode_t *mode,
                                                     cudnnDataType_t *type) {
  *nd = 2;
  *mode = CUDNN_CONVOLUTION;
  *type = CUDNN_DATA_FLOAT;
  for (int i = 0; i < 2; i++) pad[i] = one->pad[i], stride[i] = dilation[i] = 1;
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(Descriptor *, Shape *, Shape *, int nd,
                                                           int *dims) {
  for (int i = 0; i < nd; i++) dims[i] = (int)forward_output->dims[i];
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnGetConvolutionGroupCount(Descriptor *, int *count) {
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnSetConvolutionMathType(Descriptor *, cudnnMathType_t) {
  return CUDNN_STATUS_SUCCESS;
}
/* The algorithm that is quickest for these arrays: the remainder of the number of images by 3. */
#define FAMILY(NAME, STEM, CODE, FIRST)                                                            \
  enum cudnnConvolution##STEM##Algo_t { STEM##_0, STEM##_1, STEM##_2, STEM##_5 = 5, STEM##_MORE }; \
  struct cudnnConvolution##STEM##AlgoPerf_t {                                                      \
    cudnnConvolution##STEM##Algo_t algo;                                                           \
    cudnnStatus_t status;                                                                          \
    size_t memory;                                                                                 \
    cudnnMathType_t mathType;                                                                      \
  };                                                                                               \
  enum { CUDNN_CONVOLUTION_##CODE##_SPECIFY_WORKSPACE_LIMIT };                                     \
  static cudnnStatus_t cudnnFindConvolution##NAME##AlgorithmEx(                                    \
      cudnnHandle_t, Shape *a, void *, Shape *b, void *, Descriptor *, Shape *, void *, int,       \
      int *count, cudnnConvolution##STEM##AlgoPerf_t *choice, void *, size_t limit) {              \
    timed++;                                                                                       \
    if (fail_timing || limit < 4096) return CUDNN_STATUS_NOT_SUPPORTED;                            \
    *count = 1;                                                                                    \
    choice->algo = (cudnnConvolution##STEM##Algo_t)((FIRST)->dims[0] % 3);                         \
    choice->status = CUDNN_STATUS_SUCCESS;                                                         \
    choice->memory = 0;                                                                            \
    return CUDNN_STATUS_SUCCESS;                                                                   \
  }                                                                                                \
  static cudnnStatus_t cudnnGetConvolution##NAME##Algorithm(                                       \
      cudnnHandle_t, Shape *, Shape *, Descriptor *, Shape *, int, size_t,                         \
      cudnnConvolution##STEM##Algo_t *) {                                                          \
    return CUDNN_STATUS_NOT_SUPPORTED;                                                             \
  }                                                                                                \
  static cudnnStatus_t cudnnGetConvolution##NAME##WorkspaceSize(                                   \
      cudnnHandle_t, Shape *, Shape *, Descriptor *, Shape *, cudnnConvolution##STEM##Algo_t,      \
      size_t *) {                                                                                  \
    return CUDNN_STATUS_NOT_SUPPORTED;                                                             \
  }                                                                                                \
  static cudnnStatus_t cudnnConvolution##NAME(cudnnHandle_t, void *, Shape *, void *, Shape *,     \
                                              void *, Descriptor *,                                \
                                              cudnnConvolution##STEM##Algo_t algo, void *, size_t, \
                                              void *, Shape *, void *) {                           \
    used = algo;                                                                                   \
    return CUDNN_STATUS_SUCCESS;                                                                   \
  }
FAMILY(Forward, Fwd, FWD, a)
FAMILY(BackwardData, BwdData, BWD_DATA, b)
FAMILY(BackwardFilter, BwdFilter, BWD_FILTER, a)
#define CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM Fwd_0
#define CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM Fwd_1
#define CUDNN_CONVOLUTION_FWD_ALGO_FFT Fwd_MORE
#define CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING Fwd_5
#define CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 BwdData_0
#define CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT BwdData_MORE
#define CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING BwdData_5
#define CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 BwdFilter_0
#define CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT BwdFilter_MORE
