// Every kernel's arguments, and the table of one ISA's kernels.
//
// Row r of a buffer is row_bytes apart from row r - 1; feature counts may be anything. A kernel works on rows [begin, end), so
// any split of the rows over threads gives the same bits. Checks are the planner's and Program's; kernels check nothing.
#pragma once
#include <cstdint>

#include "linear_q4.h"
#include "linear_q8.h"
#include "pack_q4.h"
#include "pack_q8.h"
#include "peak.h"
#include "quantized_row.h"

namespace taut {

constexpr int64_t kPanelColumns = 64;
constexpr int64_t kBlockTokens = 32;  // tokens of a KV block and of an attention tile

template <typename T>
struct Rows {
  T* data = nullptr;  // first column of row 0
  int64_t row_bytes = 0;
};

enum class Store : int32_t { kF32 = 0, kF16 = 1, kBf16 = 2, kI8 = 3 };

// y = act(sum + bias), sum = (s0 + s1) + (s2 + s3): s_i a sequence of fused multiply-adds over k in [segment[i], segment[i + 1]).
// int8 weights, q in [-127, 127] as floats, have a scale a column: y = act(fma(sum, scale, bias)); without bias act(sum * scale).
struct LinearF32 {
  const float* x = nullptr;
  int64_t x_row_bytes = 0;
  int64_t segment[5] = {0, 0, 0, 0, 0};  // segment[4] == K; the others are even
  const void* w = nullptr;               // [N/64][K][64] of store; bf16: [N/64][K/2][64][2], an odd K padded with 0
  Store store = Store::kF32;
  const float* scale = nullptr;  // int8: [N padded to 64], else null
  const float* bias = nullptr;   // [N padded to 64] or null
  float* y = nullptr;
  int64_t y_row_bytes = 0;
  int64_t n = 0;  // true N: columns beyond it are not written
  Activation activation = Activation::kNone;
};
using LinearF32Fn = void (*)(const LinearF32&, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end);

enum class Table : int32_t { kPlain = 0, kPackedF32 = 1, kPackedQ8 = 2, kPackedF16 = 3, kPackedBf16 = 4, kPackedI8 = 5 };

// y[r] = table[index[r] + offset]
struct Embed {
  Table kind = Table::kPlain;
  // [V][H] float, [V/64][H][64] float, f16 or int8, [V/64][H/2][64][2] bf16, [V/64][H/4][64][4] of q + 128
  const void* table = nullptr;
  const float* scale = nullptr;  // int8: [V padded to 64]; q8 in groups: [V/64][H / group][64]
  int64_t group = 0;             // q8: features that share a scale, 0 all of them
  int64_t features = 0;
  const int32_t* index = nullptr;
  int64_t offset = 0;
  Rows<float> y;
};

// Where rows are quantized to. piece_group[p] numbers the scale group of piece p: consecutive pieces of one number share a scale.
// Static (scale > 0, one group): x + offset ~ scale * q, with the row's own scale where a value is beyond 128 * scale; such rows are
// counted (quant/schemes/static.py).
struct QuantizedRows {
  uint8_t* data = nullptr;  // null: not wanted
  int64_t row_bytes = 0;
  int32_t scales_offset = 0;
  int32_t features = 0;  // true K; values beyond it, up to pieces.k, are 0
  Pieces pieces;
  const int32_t* piece_group = nullptr;
  float scale = 0, offset = 0;
  int64_t* fallbacks = nullptr;  // rows that took their own scale are added, once a call; null: nobody counts
};

struct Quantize {
  Rows<const float> x;
  QuantizedRows out;
};

// s = x (+ residual); rms: y = s / sqrt(mean(s^2) + eps) * gain; layer: y = (s - mean) / sqrt(variance + eps) * gain + bias.
struct Norm {
  bool layer = false;
  Rows<const float> x;
  Rows<const float> residual;  // null data: none
  Rows<float> sum;             // null data: not wanted
  Rows<float> out;             // null data: not wanted
  QuantizedRows quantized;
  const float* gain = nullptr;
  const float* bias = nullptr;  // layer only, may be null
  int64_t features = 0;         // of the row
  int64_t width = 0;            // normalized together: features, or one head's
  float eps = 0;
  float clamp = 0;               // values of `out` are kept within [-clamp, clamp]; 0: as they are
  int64_t* clamped = nullptr;    // counts the values that were beyond, null: nobody asks
  int64_t* nonfinite = nullptr;  // counts the spans whose sum of squares is not finite
};

// Half-split rotary embedding of `heads` heads; columns of a head beyond rotary_dim are copied. y may be x.
struct Rope {
  Rows<const float> x;
  Rows<float> y;
  const float* table = nullptr;  // [positions][2][rotary_dim / 2]: cosines, sines
  const int32_t* positions = nullptr;
  int32_t heads = 0, head_dim = 0, rotary_dim = 0;
};

// How the cache keeps the keys, or the values, of one head and block: engine/kv_slots.py.
enum class KvType : int32_t { kF32 = 0, kBf16 = 1, kInt8 = 2, kInt4 = 3 };
struct KvSlot {
  KvType type = KvType::kInt8;
  int64_t bytes = 0, data_bytes = 0;  // in all, and of the numbers without their scales
};

// One layer of the paged cache: engine/kv_cache.py describes the block. `block` offsets are bytes from base.
struct KvLayer {
  uint8_t* base = nullptr;  // pool address + the layer's offset in a block
  KvSlot keys, values;
  int32_t kv_heads = 0, head_dim = 0;

  int64_t key_offset(int64_t head) const { return head * keys.bytes; }
  int64_t value_offset(int64_t head) const { return kv_heads * keys.bytes + head * values.bytes; }
  int64_t bytes() const { return kv_heads * (keys.bytes + values.bytes); }
};

// Keys (turned first when rope_table is set) and values of a token go to its slot.
struct CacheWrite {
  Rows<const float> k, v;
  KvLayer kv;
  const int64_t* token_block = nullptr;  // byte offset of the token's block
  const int32_t* positions = nullptr;
  const float* rope_table = nullptr;
  int32_t rotary_dim = 0;
};

// Causal attention. Softmax is taken over `chunk_tiles` tiles of keys at once, and chunks are joined in ascending order.
struct Attention {
  Rows<const float> q;
  Rows<float> o;
  KvLayer kv;
  const int32_t* positions = nullptr;  // of every token of the batch
  int64_t block_bytes = 0, chunk_tiles = 0;
  int32_t heads = 0;
  float scale = 0;
  bool bf16 = false;          // products of bf16: see attention_tile.h
  float limit = 0;            // scores are kept within [-limit, limit]; 0: as they are
  int64_t* beyond = nullptr;  // counts the scores that were beyond
};

// Queries [token_begin, token_end) of one sequence, for one KV head and its group of query heads.
struct AttentionWork {
  const int32_t* table = nullptr;  // the sequence's block ids
  int64_t kv_head = 0, token_begin = 0, token_end = 0;
};

// Products of attention: fp32; bf16 in pairs, as AVX512_BF16 (attention_tile.h); bf16 in blocks of 32, as AMX (attention_blocks.h).
enum class Products : int32_t { kF32 = 0, kPairs = 1, kBlocks = 2 };

// Bidirectional attention inside one sequence, over float keys and values.
struct AttentionFull {
  Rows<const float> q, k, v;
  Rows<float> o;
  int64_t chunk_tiles = 0;
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  Products products = Products::kF32;
  float limit = 0;
  int64_t* beyond = nullptr;
};

enum class Pool : int32_t { kMean = 0, kCls = 1, kLast = 2, kMax = 3 };

// y = act(x), act(x) * b or x + b, per `binary`.
enum class Binary : int32_t { kNone = 0, kAdd = 1, kMul = 2 };
struct Elementwise {
  Rows<const float> x, b;
  Rows<float> y;
  int64_t features = 0;
  Activation activation = Activation::kNone;
  Binary binary = Binary::kNone;
};

// y = act(x[:features]) * x[features:2 * features]
struct Swiglu {
  Rows<const float> x;
  Rows<float> out;  // null data: not wanted
  QuantizedRows quantized;
  int64_t features = 0;
  Activation activation = Activation::kSilu;
};

using EmbedFn = void (*)(const Embed&, int64_t row_begin, int64_t row_end);
using QuantizeFn = void (*)(const Quantize&, int64_t row_begin, int64_t row_end);
using NormFn = void (*)(const Norm&, int64_t row_begin, int64_t row_end, float* scratch);  // 2 * (features + 16) floats
using RopeFn = void (*)(const Rope&, int64_t row_begin, int64_t row_end);
using CacheWriteFn = void (*)(const CacheWrite&, int64_t row_begin, int64_t row_end, float* scratch);  // head_dim + 16 floats
using AttentionFn = void (*)(const Attention&, const AttentionWork&, float* scratch);
// The same in pieces for several threads: chunk `chunk` alone into its partial sums; then, once all chunks are there, side by side in
// `partials`, their join. The bits are attention's.
using AttentionChunkFn = void (*)(const Attention&, const AttentionWork&, int64_t chunk, float* partial, float* scratch);
using AttentionJoinFn = void (*)(const Attention&, const AttentionWork&, float* partials);
// [seq_begin, seq_end): the sequence's tokens.
using AttentionFullFn = void (*)(const AttentionFull&, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                                 int64_t token_end, float* scratch);
using ElementwiseFn = void (*)(const Elementwise&, int64_t row_begin, int64_t row_end);
using SwigluFn = void (*)(const Swiglu&, int64_t row_begin, int64_t row_end, float* scratch);  // features + 16 floats
// One sequence: rows [token_begin, token_end) of x into row `sequence` of y.
using PoolFn = void (*)(const Elementwise&, Pool, int64_t sequence, int64_t token_begin, int64_t token_end);
using NormalizeFn = void (*)(const Elementwise&, int64_t row_begin, int64_t row_end);

// The index of the first largest of n > 0 logits, -1 where one is not finite; weights = exp((logit - largest) / temperature), which 0
// leaves out.
using SharpenFn = int64_t (*)(const float* logits, int64_t n, float temperature, float* weights);

struct KernelTable {
  const char* isa;
  int32_t tile_rows;   // rows of a linear's register tile: work is split at multiples of it
  int32_t block_rows;  // most rows of a work item of the int8 and int4 linears
#define TAUT_KERNEL(type, name) type name;
#include "kernels.def"
#undef TAUT_KERNEL
  // Floats of scratch for an attention call of `rows` query rows (tokens x heads of the group) whose chunks have at most `tiles` tiles, and
  // of one chunk's partial sums.
  int64_t (*attention_scratch)(int64_t head_dim, int64_t rows, int64_t tiles);
  int64_t (*attention_partial)(int64_t head_dim, int64_t rows);
  // Bytes.
  int64_t (*linear_q8_scratch)(int64_t k, int64_t pieces);
  int64_t (*linear_q4_scratch)(int64_t k, int64_t pieces);
};

// ISAs from the plainest to the widest.
namespace scalar {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avxvnni {
const KernelTable& table();
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512bf16 {
const KernelTable& table();
}
namespace amx {
const KernelTable& table();
}

}  // namespace taut
