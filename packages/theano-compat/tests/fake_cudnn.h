/* Of cuDNN what our header uses, with answers that a test writes down beforehand. */
#ifndef FAKE_CUDNN_H
#define FAKE_CUDNN_H
#include "cudnn_version.h"
#include <cstddef>
#include <vector>

#define CUDNN_DIM_MAX 8
enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_BAD_PARAM = 3,
  CUDNN_STATUS_NOT_SUPPORTED = 9
};
enum cudnnDataType_t { CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF };
enum cudnnMathType_t { CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH, CUDNN_FMA_MATH = 3 };
enum cudnnConvolutionFwdAlgo_t {
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
  CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
  CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5,
  CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD
};
enum cudnnConvolutionBwdDataAlgo_t { DATA_0, DATA_1, DATA_2 };
enum cudnnConvolutionBwdFilterAlgo_t { FILTER_0, FILTER_1, FILTER_2 };

struct Tensor { int dims; cudnnDataType_t type; };
struct Filter {};
struct Conv { cudnnMathType_t math; };
typedef Tensor *cudnnTensorDescriptor_t;
typedef Filter *cudnnFilterDescriptor_t;
typedef Conv *cudnnConvolutionDescriptor_t;
typedef void *cudnnHandle_t;

/* One answer: an algorithm, whether it works, what it says that it needs, and what it needs. */
struct Result { int algo; cudnnStatus_t status; size_t memory; cudnnMathType_t math; size_t needs; };
static std::vector<Result> guesses, timings;
static cudnnStatus_t timing_status = CUDNN_STATUS_SUCCESS;
/* Times of `timings`, by call and place; 1 where there are none, and 0 for one that fails this time. */
static std::vector<std::vector<float>> times;
static size_t timed = 0;

static inline cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t t, int,
                                                       cudnnDataType_t *type, int *n, int *, int *) {
  *type = t->type;
  *n = t->dims;
  return CUDNN_STATUS_SUCCESS;
}
static inline cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t conv,
                                                        cudnnMathType_t math) {
  conv->math = math;
  return CUDNN_STATUS_SUCCESS;
}

#define FAMILY(NAME, STEM, A, B, C)                                                               \
  struct cudnn##STEM##AlgoPerf_t {                                                                \
    cudnn##STEM##Algo_t algo;                                                                     \
    cudnnStatus_t status;                                                                         \
    float time;                                                                                   \
    size_t memory;                                                                                \
    int determinism;                                                                              \
    cudnnMathType_t mathType;                                                                     \
  };                                                                                              \
  static inline void told_##STEM(const std::vector<Result> &told, int wanted, int *count,         \
                                 cudnn##STEM##AlgoPerf_t *results) {                              \
    for (*count = 0; *count < wanted && *count < (int)told.size(); ++*count) {                    \
      const Result &r = told[*count];                                                             \
      results[*count] = {(cudnn##STEM##Algo_t)r.algo, r.status, 1, r.memory, 0, r.math};          \
    }                                                                                             \
  }                                                                                               \
  static inline cudnnStatus_t cudnnGetConvolution##NAME##Algorithm_v7(                            \
      cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, int wanted, int *count,               \
      cudnn##STEM##AlgoPerf_t *results) {                                                         \
    told_##STEM(guesses, wanted, count, results);                                                 \
    return CUDNN_STATUS_SUCCESS;                                                                  \
  }                                                                                               \
  static inline cudnnStatus_t cudnnFindConvolution##NAME##AlgorithmEx(                            \
      cudnnHandle_t, A, const void *, B, const void *, cudnnConvolutionDescriptor_t, C, void *,   \
      int wanted, int *count, cudnn##STEM##AlgoPerf_t *results, void *, size_t) {                 \
    told_##STEM(timings, wanted, count, results);                                                 \
    for (int i = 0; timed < times.size() && i < *count; ++i)                                      \
      if (!(results[i].time = times[timed][i])) results[i].status = CUDNN_STATUS_NOT_SUPPORTED;   \
    ++timed;                                                                                      \
    return timing_status;                                                                         \
  }                                                                                               \
  static inline cudnnStatus_t cudnnGetConvolution##NAME##WorkspaceSize(                           \
      cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, cudnn##STEM##Algo_t algo,             \
      size_t *size) {                                                                             \
    for (const std::vector<Result> *told : {&timings, &guesses})                                  \
      for (const Result &r : *told)                                                               \
        if (r.algo == algo) {                                                                     \
          *size = r.needs;                                                                        \
          return r.status;                                                                        \
        }                                                                                         \
    return CUDNN_STATUS_NOT_SUPPORTED;                                                            \
  }

FAMILY(Forward, ConvolutionFwd, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
       cudnnTensorDescriptor_t)
FAMILY(BackwardData, ConvolutionBwdData, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t,
       cudnnTensorDescriptor_t)
FAMILY(BackwardFilter, ConvolutionBwdFilter, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
       cudnnFilterDescriptor_t)

#if CUDNN_MAJOR == 8
static inline int cudnnSetRNNDescriptor_v6() { return 6; }
#elif CUDNN_MAJOR < 8
static inline cudnnStatus_t cudnnGetConvolutionForwardAlgorithm() { return CUDNN_STATUS_SUCCESS; }
#endif
#endif
