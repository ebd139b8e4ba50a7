// Cases of the KV cache and of attention.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

constexpr int kLayers = 2, kBlocks = 7;
constexpr int kCallRows = 96;

// Layout of a pool: engine/kv_cache.py.
struct KvShape {
  int kv_heads, head_dim;
  bool int8;
  int64_t data_bytes() const { return (kBlockTokens * head_dim * (int8 ? 1 : 4) + 127) / 128 * 128; }
  int64_t slot_bytes() const { return data_bytes() + (int8 ? kBlockTokens * 4 : 0); }
  int64_t block_bytes() const { return int64_t{kLayers} * 2 * kv_heads * slot_bytes(); }
  KvLayer layer(uint8_t* pool, int index) const {
    return {pool + index * 2 * kv_heads * slot_bytes(), slot_bytes(), data_bytes(), kv_heads, head_dim, int8};
  }
};

struct AttentionCase {
  KvShape kv;
  int group, first_position, tokens;
  Values values = Values::kUnit;
  int chunk_tiles = 16;
  bool bf16 = false;
};

// A pool of random keys and values; what no query sees is NaN (int8: scales).
void fill_pool(const KvShape& kv, uint8_t* pool, const int32_t* table, int num_keys, Random& random, Values values) {
  for (int tile = 0; tile * kBlockTokens < num_keys; ++tile) {
    for (int slot = 0; slot < 2 * kv.kv_heads * kLayers; ++slot) {
      uint8_t* base = pool + table[tile] * kv.block_bytes() + slot * kv.slot_bytes();
      const bool is_key = slot / kv.kv_heads % 2 == 0;
      for (int64_t i = 0; i < kBlockTokens * kv.head_dim; ++i) {
        if (kv.int8) {
          base[i] = static_cast<uint8_t>(random.integer(-127, 127));
          continue;
        }
        const int64_t token = is_key ? i % kBlockTokens : i / kv.head_dim;
        const float value = values == Values::kUnit ? random.unit() : random.wide() * 0x1p-20f;
        reinterpret_cast<float*>(base)[i] = tile * kBlockTokens + token < num_keys ? value : __builtin_nanf("");
      }
      for (int64_t t = 0; kv.int8 && t < kBlockTokens; ++t) {
        const float scale = values == Values::kUnit ? 0.01f * random.unit() : 0.01f * random.wide() * 0x1p-20f;
        reinterpret_cast<float*>(base + kv.data_bytes())[t] = tile * kBlockTokens + t < num_keys ? scale : __builtin_nanf("");
      }
    }
  }
}

void run_attention(const KernelTable& kernels, const Attention& a, const AttentionWork& w, bool by_chunks) {
  const int64_t d = a.kv.head_dim, rows = (w.token_end - w.token_begin) * (a.heads / a.kv.kv_heads);
  const int64_t tiles = a.positions[w.token_end - 1] / kBlockTokens + 1, chunks = (tiles - 1) / a.chunk_tiles + 1;
  Floats scratch(1, kernels.attention_scratch(d, rows, tiles < a.chunk_tiles ? tiles : a.chunk_tiles));
  if (!by_chunks) {
    kernels.attention(a, w, scratch.data());
    return;
  }
  const int64_t size = kernels.attention_partial(d, rows);
  Floats partials(1, chunks * size);
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    kernels.attention_chunk(a, w, chunk, partials.data() + chunk * size, scratch.data());
  }
  kernels.attention_join(a, w, partials.data());
}

void attention_case(Check& check, const AttentionCase& c, uint64_t seed) {
  Random random(seed);
  const int heads = c.kv.kv_heads * c.group, num_keys = c.first_position + c.tokens, d = c.kv.head_dim;
  Bytes pool(static_cast<size_t>(kBlocks * c.kv.block_bytes()));
  const int32_t table[kBlocks] = {3, 0, 6, 1, 5, 2, 4};
  fill_pool(c.kv, pool.data(), table, num_keys, random, c.values);
  Floats q(2 + c.tokens, heads * d, random, c.values == Values::kUnit ? Values::kUnit : Values::kWide, 5);
  std::vector<int32_t> positions(static_cast<size_t>(2 + c.tokens));
  for (int t = 0; t < c.tokens; ++t) positions[static_cast<size_t>(2 + t)] = c.first_position + t;
  const auto label =
      text("attention int8 %d kv heads %d group %d head_dim %d position %d tokens %d values %d chunks of %d bf16 %d", c.kv.int8,
           c.kv.kv_heads, c.group, d, c.first_position, c.tokens, int(c.values), c.chunk_tiles, c.bf16);
  check.same(label, [&](const KernelTable& kernels) {
    Floats o(2 + c.tokens, heads * d, 3);
    Attention a;
    a.q = q.in(), a.o = o.out(), a.kv = c.kv.layer(pool.data(), 1), a.positions = positions.data();
    a.block_bytes = c.kv.block_bytes(), a.chunk_tiles = c.chunk_tiles, a.heads = heads, a.bf16 = c.bf16;
    a.scale = 0.3f / __builtin_sqrtf(static_cast<float>(d));
    // Token by token in half of the cases on the reference, in the others on the rest: a row depends on no other. Likewise chunk by
    // chunk, last one first: chunks depend on none.
    const int limit = kCallRows / c.group > 0 ? kCallRows / c.group : 1;
    const int step = check.is_reference(kernels) == (seed % 2 == 0) ? 1 : limit;
    for (int head = 0; head < c.kv.kv_heads; ++head) {
      for (int t = 0; t < c.tokens; t += step) {
        const AttentionWork w{table, head, 2 + t, 2 + (t + step < c.tokens ? t + step : c.tokens)};
        run_attention(kernels, a, w, check.is_reference(kernels) == (seed % 4 < 2));
      }
    }
    return o.words();
  });
}

void full_case(Check& check, int kv_heads, int group, int d, int tokens, Values values, int chunk_tiles, uint64_t seed,
               bool bf16 = false) {
  Random random(seed);
  const int heads = kv_heads * group, begin = 3;
  Floats q(begin + tokens, heads * d, random, values, 5), k(begin + tokens, kv_heads * d, random, values, 1);
  Floats v(begin + tokens, kv_heads * d, random, values == Values::kUnit ? values : Values::kWide, 2);
  check.same(text("attention_full kv heads %d group %d head_dim %d tokens %d values %d chunks of %d bf16 %d", kv_heads, group,
                  d, tokens, int(values), chunk_tiles, bf16),
             [&](const KernelTable& kernels) {
               Floats o(begin + tokens, heads * d, 3);
               AttentionFull a;
               a.q = q.in(), a.k = k.in(), a.v = v.in(), a.o = o.out();
               a.heads = heads, a.kv_heads = kv_heads, a.head_dim = d, a.scale = 1.0f / __builtin_sqrtf(static_cast<float>(d));
               a.chunk_tiles = chunk_tiles, a.bf16 = bf16;
               const int limit = kCallRows / group > 0 ? kCallRows / group : 1;
               const int64_t rows = kCallRows > group ? kCallRows : group;
               Floats scratch(1, kernels.attention_scratch(d, rows, (tokens + kBlockTokens - 1) / kBlockTokens));
               const int step = check.is_reference(kernels) == (seed % 2 == 0) ? 1 : limit;
               for (int head = 0; head < kv_heads; ++head) {
                 for (int t = 0; t < tokens; t += step) {
                   const int end = t + step < tokens ? t + step : tokens;
                   kernels.attention_full(a, begin, begin + tokens, head, begin + t, begin + end, scratch.data());
                 }
               }
               return o.words();
             });
}

}  // namespace

void check_cache_write(Check& check) {
  uint64_t seed = 13000;
  constexpr int kTokens = 37, kPositions = 100;
  for (const bool int8 : {false, true}) {
    for (const auto& [kv_heads, head_dim, rotary_dim] :
         {std::tuple{3, 64, 64}, {1, 16, 0}, {2, 80, 32}, {2, 20, 20}, {1, 128, 128}}) {
      for (const Values values : {Values::kUnit, Values::kWide, Values::kSpecial}) {
        Random random(++seed);
        const KvShape shape{kv_heads, head_dim, int8};
        Floats k(kTokens, kv_heads * head_dim, random, values, 3), v(kTokens, kv_heads * head_dim, random, values, 1);
        Floats turn(kPositions, rotary_dim, random, Values::kUnit);
        const int32_t blocks[] = {4, 2, 5};
        int32_t positions[kTokens];
        int64_t token_block[kTokens];
        for (int t = 0; t < kTokens; ++t) {
          positions[t] = 20 + t;
          token_block[t] = blocks[positions[t] / kBlockTokens] * shape.block_bytes();
        }
        check.same(text("cache_write int8 %d kv heads %d head_dim %d rotary_dim %d values %d", int8, kv_heads, head_dim,
                        rotary_dim, int(values)),
                   [&](const KernelTable& table) {
                     Bytes pool(static_cast<size_t>(kBlocks * shape.block_bytes()));
                     Floats scratch(1, head_dim + 16);
                     CacheWrite p;
                     p.k = k.in(), p.v = v.in(), p.kv = shape.layer(pool.data(), 1), p.token_block = token_block;
                     p.positions = positions, p.rope_table = rotary_dim ? turn.data() : nullptr, p.rotary_dim = rotary_dim;
                     table.cache_write(p, 0, kTokens, scratch.data());
                     return int8 ? pool.words() : one_nan(pool.words());
                   });
      }
    }
  }
  check.end_family("cache_write");
}

void check_attention(Check& check) {
  uint64_t seed = 14000;
  for (const bool int8 : {false, true}) {
    for (const auto& [kv_heads, group, head_dim] :
         {std::tuple{3, 3, 64}, {1, 1, 16}, {2, 2, 80}, {1, 7, 20}, {1, 4, 128}, {1, 5, 96}}) {
      for (const auto& [position, tokens] : {std::pair{0, 1}, {0, 5}, {31, 1}, {32, 1}, {40, 3}, {100, 1}, {5, 40}}) {
        for (const Values values : {Values::kUnit, Values::kWide}) {
          attention_case(check, {{kv_heads, head_dim, int8}, group, position, tokens, values}, ++seed);
          attention_case(check, {{kv_heads, head_dim, int8}, group, position, tokens, values, 2, true}, ++seed);
        }
      }
    }
    for (const int chunk_tiles : {1, 2, 3}) {
      for (const auto& [position, tokens] : {std::pair{0, 150}, {63, 2}, {64, 1}, {190, 20}, {223, 1}}) {
        attention_case(check, {{2, 64, int8}, 3, position, tokens, Values::kUnit, chunk_tiles}, ++seed);
        attention_case(check, {{1, 20, int8}, 1, position, tokens, Values::kWide, chunk_tiles}, ++seed);
        attention_case(check, {{1, 64, int8}, 5, position, 1, Values::kUnit, chunk_tiles}, ++seed);
      }
    }
    attention_case(check, {{1, 64, int8}, 1, 60, 100}, ++seed);
    attention_case(check, {{1, 16, int8}, 100, 33, 2}, ++seed);  // a group beyond a call's query rows
  }
  check.end_family("attention");
}

void check_attention_full(Check& check) {
  uint64_t seed = 15000;
  for (const auto& [kv_heads, group, head_dim] : {std::tuple{2, 1, 32}, {1, 1, 64}, {1, 3, 20}, {2, 2, 80}, {1, 1, 7}}) {
    for (const int tokens : {1, 2, 5, 16, 31, 32, 33, 70}) {
      for (const Values values : {Values::kUnit, Values::kWide, Values::kSpecial}) {
        full_case(check, kv_heads, group, head_dim, tokens, values, 16, ++seed);
        full_case(check, kv_heads, group, head_dim, tokens, values, 1, ++seed);
        full_case(check, kv_heads, group, head_dim, tokens, values, 2, ++seed, true);
      }
    }
  }
  check.end_family("attention_full");
}

}  // namespace taut::check
