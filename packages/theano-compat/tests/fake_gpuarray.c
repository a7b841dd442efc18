/* What matters of libgpuarray 0.7 and CUDA's driver where a process has several contexts. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct context {
  void **ops;
  char head[128];
  void *private[6];
  size_t made; /* kernels, by a bit each */
  unsigned enter;
  char rest[36];
} context;
_Static_assert(sizeof(context) == 232, "as in libgpuarray");

typedef struct block {
  void *address;
  context *ctx;
} block;

static context *stack[16] = {NULL};
static int depth = 0;
char events[1000] = "";
int broken = 0; /* whether the driver's calls fail */

static void note(const char *text, const void *of) {
  sprintf(events + strlen(events), "%s %c; ", text, *(const char *)of);
}

void cuda_enter(context *ctx) {
  if (!ctx->enter)
    stack[++depth] = ctx;
  ctx->enter++;
}

void cuda_exit(context *ctx) {
  ctx->enter--;
  if (!ctx->enter)
    depth--;
}

void *cuda_get_stream(context *ctx) { return ctx->private; }

static int kernel_alloc(void **k, context *ctx, unsigned count, const char **strings,
                        const size_t *lengths, const char *fname, unsigned numargs,
                        const int *typecodes, int flags, char **err) {
  size_t bit = (size_t)1 << flags;
  (void)k, (void)count, (void)strings, (void)lengths, (void)fname, (void)numargs;
  (void)typecodes, (void)err;
  cuda_enter(ctx);
  if (ctx->made & bit)
    return 0; /* as there */
  ctx->made |= bit;
  cuda_exit(ctx);
  return 7;
}

static int transfer(block *to, size_t begin, block *of, size_t of_begin, size_t n) {
  (void)to, (void)of;
  sprintf(events + strlen(events), "copy %zu %zu %zu; ", begin, of_begin, n);
  return 5;
}

static void *table[21] = {[12] = kernel_alloc, [18] = transfer};

void make(context *ctx, const char *name) {
  memset(ctx, 0, sizeof *ctx);
  ctx->ops = table;
  ctx->private[0] = (void *)(size_t)*name;
}

int new_kernel(context *ctx, int number) {
  typedef int alloc(void *, context *, unsigned, void *, void *, void *, unsigned, void *, int,
                    void *);
  return ((alloc *)ctx->ops[12])(NULL, ctx, 1, NULL, NULL, NULL, 0, NULL, number, NULL);
}

int copy(block *to, size_t begin, block *of, size_t of_begin, size_t n) {
  typedef int move(block *, size_t, block *, size_t, size_t);
  return ((move *)to->ctx->ops[18])(to, begin, of, of_begin, n);
}

void make_current(context *ctx) { stack[depth] = ctx; }

/* Whether a kernel is launched in the context that it belongs to. */
int launches(context *ctx) {
  int right;
  cuda_enter(ctx);
  right = stack[depth] == ctx;
  cuda_exit(ctx);
  return right;
}

int cuEventCreate(void **event, unsigned flags) {
  static char names[] = "12345678";
  static int made = 0;
  *event = &names[made++];
  return broken || flags != 2;
}

int cuEventRecord(void *event, void *stream) {
  note("record", event);
  note("on", stream);
  return broken || stack[depth]->private != stream;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  note("stream", stream);
  note("waits for", event);
  return broken || flags || stack[depth]->private != stream;
}
