/* cudnn.h for Theano 1.0.5, which was written for cuDNN 5 to 7: the installed header, and what is
   gone from it since cuDNN 8.

   This folder comes before the installed header's on the compiler's path. Below cuDNN 8 nothing is
   added. What is added:

   - cudnnGetConvolution{Forward,BackwardData,BackwardFilter}Algorithm() and their preferences, by
     the _v7 functions, which list algorithms in the order of the speed that cuDNN expects.
   - cudnnFindConvolution...AlgorithmEx() with a check. Theano asks for one algorithm, does not look
     whether it worked, and runs it in the mode that it sets itself. Here the fastest is taken that
     worked, that Theano runs as it is, and whose workspace in that mode is within the limit. Each is
     timed more than once: the first time includes the loading of its kernels.
   - cudnnSetRNNDescriptor() in cuDNN 8. cuDNN 9 has no recurrent networks of that kind any more. */
#ifndef SYNK_THEANO_COMPAT_CUDNN_H
#define SYNK_THEANO_COMPAT_CUDNN_H

#include_next <cudnn.h>

#if defined(CUDNN_MAJOR) && CUDNN_MAJOR >= 8 && defined(__cplusplus)

#include <algorithm>
#include <cstddef>

enum cudnnConvolutionFwdPreference_t {
  CUDNN_CONVOLUTION_FWD_NO_WORKSPACE = 0,
  CUDNN_CONVOLUTION_FWD_PREFER_FASTEST = 1,
  CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT = 2
};
enum cudnnConvolutionBwdDataPreference_t {
  CUDNN_CONVOLUTION_BWD_DATA_NO_WORKSPACE = 0,
  CUDNN_CONVOLUTION_BWD_DATA_PREFER_FASTEST = 1,
  CUDNN_CONVOLUTION_BWD_DATA_SPECIFY_WORKSPACE_LIMIT = 2
};
enum cudnnConvolutionBwdFilterPreference_t {
  CUDNN_CONVOLUTION_BWD_FILTER_NO_WORKSPACE = 0,
  CUDNN_CONVOLUTION_BWD_FILTER_PREFER_FASTEST = 1,
  CUDNN_CONVOLUTION_BWD_FILTER_SPECIFY_WORKSPACE_LIMIT = 2
};

namespace synk_theano_compat {

/* More than any of the three has: an algorithm may be listed once for each mathematical mode. */
const int MAX_RESULTS = 32;

/* How often algorithms are timed; the shortest time of each counts. In the second, some kernels are
   still new. On one H100 a step of ResNet-50 takes 42.7 ms by the first times, 38.7 by these. */
const int TIMINGS = 3;

static inline size_t limit_of(int preference, size_t limit) {
  return preference == 0 ? 0 : preference == 1 ? ~(size_t)0 : limit;
}

/* Number of dimensions and type of a tensor, e.g. 5 and CUDNN_DATA_FLOAT. */
static inline cudnnStatus_t look_at(cudnnTensorDescriptor_t tensor, int *dims,
                                    cudnnDataType_t *type) {
  int shape[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
  return cudnnGetTensorNdDescriptor(tensor, CUDNN_DIM_MAX, type, dims, shape, strides);
}

/* Does Theano run this algorithm as it is? Of those for three dimensions it replaces some, and
   would keep the workspace of the one that it was told. */
static inline bool kept(cudnnConvolutionFwdAlgo_t algo, int dims) {
  return dims != 5 || algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
         algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
         algo == CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING;
}
static inline bool kept(cudnnConvolutionBwdDataAlgo_t, int) { return true; }
static inline bool kept(cudnnConvolutionBwdFilterAlgo_t, int) { return true; }

/* Those that failed are last. */
template <class Perf> static bool is_faster(const Perf &a, const Perf &b) {
  bool ran = a.status == CUDNN_STATUS_SUCCESS;
  return ran && (b.status != CUDNN_STATUS_SUCCESS || a.time < b.time);
}

/* Take in further times of the algorithms that worked, and list the fastest first. */
template <class Perf>
static void take_times(Perf *results, int count, const Perf *further, int n_further) {
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < n_further; ++j)
      if (results[i].algo == further[j].algo && results[i].mathType == further[j].mathType &&
          results[i].status == CUDNN_STATUS_SUCCESS && is_faster(further[j], results[i]))
        results[i] = further[j];
  std::stable_sort(results, results + count, is_faster<Perf>);
}

}  // namespace synk_theano_compat

/* The three families differ in names, and in the types of their arguments A, B and C only:
   (x, w, y), (w, dy, dx), (x, dy, dw). TENSOR is one of them whose type is a tensor's. */
#define SYNK_THEANO_COMPAT_CONVOLUTION(NAME, STEM, A, B, C, TENSOR)                                \
  namespace synk_theano_compat {                                                                   \
  static inline cudnnStatus_t choose_##STEM(                                                       \
      cudnnHandle_t handle, A a, B b, cudnnConvolutionDescriptor_t conv, C c, int count,           \
      const cudnn##STEM##AlgoPerf_t *results, size_t limit, bool timed,                            \
      cudnn##STEM##AlgoPerf_t *choice) {                                                           \
    int dims;                                                                                      \
    cudnnDataType_t type;                                                                          \
    cudnnStatus_t status = look_at(TENSOR, &dims, &type);                                          \
    if (status != CUDNN_STATUS_SUCCESS) return status;                                             \
    status = CUDNN_STATUS_NOT_SUPPORTED;                                                           \
    for (int i = 0; i < count; ++i) {                                                              \
      cudnn##STEM##AlgoPerf_t result = results[i];                                                 \
      size_t needed = 0;                                                                           \
      if (result.status != CUDNN_STATUS_SUCCESS || !kept(result.algo, dims)) continue;             \
      /* The mode that Theano will set. */                                                         \
      if (!(timed && type == CUDNN_DATA_HALF)) result.mathType = CUDNN_DEFAULT_MATH;               \
      if (cudnnSetConvolutionMathType(conv, result.mathType) != CUDNN_STATUS_SUCCESS) continue;    \
      if (cudnnGetConvolution##NAME##WorkspaceSize(handle, a, b, conv, c, result.algo, &needed) != \
          CUDNN_STATUS_SUCCESS)                                                                    \
        continue;                                                                                  \
      if (needed > limit) continue;                                                                \
      result.memory = needed;                                                                      \
      *choice = result;                                                                            \
      return CUDNN_STATUS_SUCCESS;                                                                 \
    }                                                                                              \
    return status;                                                                                 \
  }                                                                                                \
  static inline cudnnStatus_t guess_##STEM(cudnnHandle_t handle, A a, B b,                         \
                                           cudnnConvolutionDescriptor_t conv, C c, size_t limit,   \
                                           bool timed, cudnn##STEM##AlgoPerf_t *choice) {          \
    cudnn##STEM##AlgoPerf_t results[MAX_RESULTS];                                                  \
    int count = 0;                                                                                 \
    cudnnStatus_t status = cudnnGetConvolution##NAME##Algorithm_v7(handle, a, b, conv, c,          \
                                                                   MAX_RESULTS, &count, results);  \
    if (status != CUDNN_STATUS_SUCCESS) return status;                                             \
    return choose_##STEM(handle, a, b, conv, c, count, results, limit, timed, choice);             \
  }                                                                                                \
  static inline cudnnStatus_t find_##STEM(                                                         \
      cudnnHandle_t handle, A a, const void *a_data, B b, const void *b_data,                      \
      cudnnConvolutionDescriptor_t conv, C c, void *c_data, int wanted, int *found,                \
      cudnn##STEM##AlgoPerf_t *choices, void *workspace, size_t limit) {                           \
    cudnn##STEM##AlgoPerf_t results[MAX_RESULTS];                                                  \
    int count = 0;                                                                                 \
    *found = 0;                                                                                    \
    if (wanted < 1) return CUDNN_STATUS_BAD_PARAM;                                                 \
    cudnnStatus_t status = cudnnFindConvolution##NAME##AlgorithmEx(                                \
        handle, a, a_data, b, b_data, conv, c, c_data, MAX_RESULTS, &count, results, workspace,    \
        limit);                                                                                    \
    for (int timing = 1; timing < TIMINGS && status == CUDNN_STATUS_SUCCESS; ++timing) {           \
      cudnn##STEM##AlgoPerf_t further[MAX_RESULTS];                                                \
      int n_further = 0;                                                                           \
      if (cudnnFindConvolution##NAME##AlgorithmEx(handle, a, a_data, b, b_data, conv, c, c_data,   \
                                                  MAX_RESULTS, &n_further, further, workspace,     \
                                                  limit) == CUDNN_STATUS_SUCCESS)                  \
        take_times(results, count, further, n_further);                                            \
    }                                                                                              \
    if (status == CUDNN_STATUS_SUCCESS)                                                            \
      status = choose_##STEM(handle, a, b, conv, c, count, results, limit, true, choices);         \
    if (status != CUDNN_STATUS_SUCCESS)                                                            \
      status = guess_##STEM(handle, a, b, conv, c, limit, true, choices);                          \
    if (status == CUDNN_STATUS_SUCCESS) *found = 1;                                                \
    return status;                                                                                 \
  }                                                                                                \
  }                                                                                                \
  static inline cudnnStatus_t cudnnGetConvolution##NAME##Algorithm(                                \
      cudnnHandle_t handle, A a, B b, cudnnConvolutionDescriptor_t conv, C c,                      \
      cudnn##STEM##Preference_t preference, size_t limit, cudnn##STEM##Algo_t *algo) {             \
    cudnn##STEM##AlgoPerf_t choice;                                                                \
    cudnnStatus_t status = synk_theano_compat::guess_##STEM(                                       \
        handle, a, b, conv, c, synk_theano_compat::limit_of(preference, limit), false, &choice);   \
    if (status == CUDNN_STATUS_SUCCESS) *algo = choice.algo;                                       \
    return status;                                                                                 \
  }

SYNK_THEANO_COMPAT_CONVOLUTION(Forward, ConvolutionFwd, cudnnTensorDescriptor_t,
                               cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, a)
SYNK_THEANO_COMPAT_CONVOLUTION(BackwardData, ConvolutionBwdData, cudnnFilterDescriptor_t,
                               cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, b)
SYNK_THEANO_COMPAT_CONVOLUTION(BackwardFilter, ConvolutionBwdFilter, cudnnTensorDescriptor_t,
                               cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, a)

#undef SYNK_THEANO_COMPAT_CONVOLUTION

#define cudnnFindConvolutionForwardAlgorithmEx synk_theano_compat::find_ConvolutionFwd
#define cudnnFindConvolutionBackwardDataAlgorithmEx synk_theano_compat::find_ConvolutionBwdData
#define cudnnFindConvolutionBackwardFilterAlgorithmEx synk_theano_compat::find_ConvolutionBwdFilter

#if CUDNN_MAJOR == 8
#define cudnnSetRNNDescriptor cudnnSetRNNDescriptor_v6
#endif

#endif /* CUDNN_MAJOR >= 8 */
#endif /* SYNK_THEANO_COMPAT_CUDNN_H */
