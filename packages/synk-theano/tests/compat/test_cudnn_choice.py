"""Which of cuDNN's algorithms a convolution gets by the times that cuDNN gives: a stand-in here."""

import shutil
import subprocess

import pytest

from synk_theano_compat._cuda import cudnn

INSTALLED = r"""
#pragma once
#include <cstddef>
#define CUDNN_MAJOR 9
#define CUDNN_DIM_MAX 8
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED };
enum cudnnDataType_t { CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF };
enum cudnnMathType_t { CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH, CUDNN_FMA_MATH };
typedef struct Handle *cudnnHandle_t;
typedef struct Tensor *cudnnTensorDescriptor_t;
typedef struct Filter *cudnnFilterDescriptor_t;
typedef struct Convolution *cudnnConvolutionDescriptor_t;
enum cudnnConvolutionFwdAlgo_t {
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
  CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
  FORWARD_3
};
enum cudnnConvolutionBwdDataAlgo_t { DATA_0, DATA_1, DATA_2, DATA_3 };
enum cudnnConvolutionBwdFilterAlgo_t { FILTER_0, FILTER_1, FILTER_2, FILTER_3 };

static cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t, int, cudnnDataType_t *type,
                                                int *dims, int *, int *) {
  *type = CUDNN_DATA_FLOAT;
  *dims = 4;
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t) {
  return CUDNN_STATUS_SUCCESS;
}

/* The times of the calls one after the other, by algorithm; 0 for one that fails. */
static const float TIMES[3][4] = {{3, 5, 4, 0}, {2.5f, 2, 1, 0.5f}, {9, 4, 1, 0.5f}};
static int calls = 0;

#define FAMILY(NAME, STEM, A, B, C)                                                               \
  struct cudnn##STEM##AlgoPerf_t {                                                                \
    cudnn##STEM##Algo_t algo;                                                                     \
    cudnnStatus_t status;                                                                         \
    float time;                                                                                   \
    size_t memory;                                                                                \
    cudnnMathType_t mathType;                                                                     \
  };                                                                                              \
  static cudnnStatus_t cudnnGetConvolution##NAME##WorkspaceSize(                                  \
      cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, cudnn##STEM##Algo_t algo,             \
      size_t *size) {                                                                             \
    *size = algo == 2 ? 1000 : 10;                                                                \
    return CUDNN_STATUS_SUCCESS;                                                                  \
  }                                                                                               \
  static cudnnStatus_t cudnnGetConvolution##NAME##Algorithm_v7(                                   \
      cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, int, int *,                           \
      cudnn##STEM##AlgoPerf_t *) {                                                                \
    return CUDNN_STATUS_NOT_SUPPORTED;                                                            \
  }                                                                                               \
  static cudnnStatus_t cudnnFindConvolution##NAME##AlgorithmEx(                                   \
      cudnnHandle_t, A, const void *, B, const void *, cudnnConvolutionDescriptor_t, C, void *,   \
      int, int *count, cudnn##STEM##AlgoPerf_t *results, void *, size_t) {                        \
    *count = 4;                                                                                   \
    for (int algo = 0; algo < 4; algo++) {                                                        \
      float time = TIMES[calls][algo];                                                            \
      results[algo] = {(cudnn##STEM##Algo_t)algo,                                                 \
                       time ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED, time, 0,         \
                       CUDNN_DEFAULT_MATH};                                                       \
    }                                                                                             \
    calls++;                                                                                      \
    return CUDNN_STATUS_SUCCESS;                                                                  \
  }
FAMILY(Forward, ConvolutionFwd, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
       cudnnTensorDescriptor_t)
FAMILY(BackwardData, ConvolutionBwdData, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t,
       cudnnTensorDescriptor_t)
FAMILY(BackwardFilter, ConvolutionBwdFilter, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
       cudnnFilterDescriptor_t)
"""

PROGRAM = r"""
#include <cstdio>
#include <cudnn.h>

#define SHOW(NAME, STEM)                                                                          \
  calls = found = 0;                                                                              \
  cudnn##STEM##AlgoPerf_t chosen_##STEM;                                                          \
  cudnnFindConvolution##NAME##AlgorithmEx(0, 0, 0, 0, 0, 0, 0, 0, 1, &found, &chosen_##STEM, 0,   \
                                          LIMIT);                                                 \
  std::printf("%d %d %g %zu\n", found, (int)chosen_##STEM.algo, chosen_##STEM.time,               \
              chosen_##STEM.memory);

int main() {
  int found;
  SHOW(Forward, ConvolutionFwd)
  SHOW(BackwardData, ConvolutionBwdData)
  SHOW(BackwardFilter, ConvolutionBwdFilter)
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (5000, "1 2 1 1000"),  # the first time says 0; 3 worked only once it was tried again
        (500, "1 1 2 10"),  # without room for 2
    ],
)
def test_an_algorithm_is_chosen_by_times_without_the_loading_of_kernels(tmp_path, limit, chosen):
    (tmp_path / "cudnn.h").write_text(INSTALLED)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    folders = [f"-I{cudnn.INCLUDE}", f"-I{tmp_path}"]
    options = ["-Wall", "-Wno-unused-function", f"-DLIMIT={limit}", "-o", "program"]
    compiler = ["g++", "-std=c++11", *folders, *options, "program.cpp"]
    subprocess.run(compiler, cwd=tmp_path, check=True, timeout=60)
    said = subprocess.run(
        ["./program"], cwd=tmp_path, stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert said.stdout.decode().splitlines() == [chosen] * 3
