// Cases of the KV cache and of attention.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

constexpr int kLayers = 2, kBlocks = 7;
constexpr int kCallRows = 96;

// Layout of a pool: engine/kv_cache.py. `type` kInt4: keys of int8, values of four bits; else both alike.
struct KvShape {
  int kv_heads, head_dim;
  KvType type;
  static KvSlot slot(KvType type, int64_t head_dim) {
    const int64_t groups = (head_dim + 31) / 32, scales = kBlockTokens * 4;
    const int64_t size = type == KvType::kF32 ? 4 : type == KvType::kBf16 ? 2 : 1;
    const int64_t data =
        type == KvType::kInt4 ? kBlockTokens * groups * 16 : (kBlockTokens * head_dim * size + 127) / 128 * 128;
    return {type, data + (type == KvType::kInt8 ? scales : type == KvType::kInt4 ? groups * scales : 0), data};
  }
  KvLayer layer(uint8_t* pool, int index) const {
    KvLayer l;
    l.keys = slot(type == KvType::kInt4 ? KvType::kInt8 : type, head_dim), l.values = slot(type, head_dim);
    l.kv_heads = kv_heads, l.head_dim = head_dim;
    l.base = pool + index * l.bytes();
    return l;
  }
  int64_t block_bytes() const { return kLayers * layer(nullptr, 0).bytes(); }
};

constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kInt8, KvType::kInt4};

struct AttentionCase {
  KvShape kv;
  int group, first_position, tokens;
  Values values = Values::kUnit;
  int chunk_tiles = 16;
  bool bf16 = false;
  float limit = 0;
};

// One slot, of which the first `seen` tokens hold numbers; the others are NaN (int8 and int4: their scales).
void fill_slot(uint8_t* base, const KvSlot& slot, bool is_key, int64_t head_dim, int64_t seen, Random& random, Values values) {
  const bool unit = values == Values::kUnit;
  const auto number = [&] { return unit ? random.unit() : random.wide() * 0x1p-20f; };
  switch (slot.type) {
    case KvType::kF32:
      for (int64_t i = 0; i < kBlockTokens * head_dim; ++i) {
        const float value = number();
        reinterpret_cast<float*>(base)[i] = (is_key ? i % kBlockTokens : i / head_dim) < seen ? value : __builtin_nanf("");
      }
      return;
    case KvType::kBf16:
      for (int64_t i = 0; i < kBlockTokens * head_dim; ++i) {
        const float value = number();
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        const int64_t token = is_key ? i / 2 % kBlockTokens : i / (2 * head_dim) * 2 + i % 2;
        reinterpret_cast<uint16_t*>(base)[i] = static_cast<uint16_t>(token < seen ? bits >> 16 : 0x7fc0);
      }
      return;
    case KvType::kInt8:
      for (int64_t i = 0; i < kBlockTokens * head_dim; ++i) base[i] = static_cast<uint8_t>(random.integer(-127, 127));
      for (int64_t t = 0; t < kBlockTokens; ++t) {
        const float scale = 0.01f * number();
        reinterpret_cast<float*>(base + slot.data_bytes)[t] = t < seen ? scale : __builtin_nanf("");
      }
      return;
    case KvType::kInt4:
      for (int64_t i = 0; i < slot.data_bytes; ++i) base[i] = static_cast<uint8_t>(random.bits());
      for (int64_t i = 0; i < (slot.bytes - slot.data_bytes) / 2; ++i) {  // any finite float16 where they are wide
        const uint32_t bits = unit ? (random.bits() & 0x8fff) | 0x2000 : random.bits() & 0xbbff;
        reinterpret_cast<uint16_t*>(base + slot.data_bytes)[i] = static_cast<uint16_t>(i % kBlockTokens < seen ? bits : 0x7e00);
      }
      return;
  }
}

// A pool of random keys and values; what no query sees is NaN.
void fill_pool(const KvShape& kv, uint8_t* pool, const int32_t* table, int num_keys, Random& random, Values values) {
  for (int tile = 0; tile * kBlockTokens < num_keys; ++tile) {
    for (int index = 0; index < kLayers; ++index) {
      const KvLayer layer = kv.layer(pool + table[tile] * kv.block_bytes(), index);
      const int64_t seen = num_keys - tile * kBlockTokens;
      for (int head = 0; head < kv.kv_heads; ++head) {
        fill_slot(layer.base + layer.key_offset(head), layer.keys, true, kv.head_dim, seen, random, values);
        fill_slot(layer.base + layer.value_offset(head), layer.values, false, kv.head_dim, seen, random, values);
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
      text("attention type %d kv heads %d group %d head_dim %d position %d tokens %d values %d chunks of %d bf16 %d limit %g",
           int(c.kv.type), c.kv.kv_heads, c.group, d, c.first_position, c.tokens, int(c.values), c.chunk_tiles, c.bf16,
           double{c.limit});
  check.same(label, [&](const KernelTable& kernels) {
    Floats o(2 + c.tokens, heads * d, 3);
    Attention a;
    a.q = q.in(), a.o = o.out(), a.kv = c.kv.layer(pool.data(), 1), a.positions = positions.data();
    a.block_bytes = c.kv.block_bytes(), a.chunk_tiles = c.chunk_tiles, a.heads = heads, a.bf16 = c.bf16;
    a.scale = 0.3f / __builtin_sqrtf(static_cast<float>(d));
    int64_t beyond = 0;
    a.limit = c.limit, a.beyond = &beyond;
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
    Words words = o.words();
    append(words, {static_cast<uint32_t>(beyond)});
    return words;
  });
}

void full_case(Check& check, int kv_heads, int group, int d, int tokens, Values values, int chunk_tiles, uint64_t seed,
               Products products = Products::kF32) {
  Random random(seed);
  const int heads = kv_heads * group, begin = 3;
  Floats q(begin + tokens, heads * d, random, values, 5), k(begin + tokens, kv_heads * d, random, values, 1);
  Floats v(begin + tokens, kv_heads * d, random, values == Values::kUnit ? values : Values::kWide, 2);
  check.same(text("attention_full kv heads %d group %d head_dim %d tokens %d values %d chunks of %d products %d", kv_heads,
                  group, d, tokens, int(values), chunk_tiles, int(products)),
             [&](const KernelTable& kernels) {
               Floats o(begin + tokens, heads * d, 3);
               AttentionFull a;
               a.q = q.in(), a.k = k.in(), a.v = v.in(), a.o = o.out();
               a.heads = heads, a.kv_heads = kv_heads, a.head_dim = d, a.scale = 1.0f / __builtin_sqrtf(static_cast<float>(d));
               a.chunk_tiles = chunk_tiles, a.products = products;
               int64_t beyond = 0;
               a.limit = seed % 7 == 0 ? 0.25f : 0.0f, a.beyond = &beyond;
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
               Words words = o.words();
               append(words, {static_cast<uint32_t>(beyond)});
               return words;
             });
}

// Numbers of 16 bits with every NaN made the same.
Words one_bf16_nan(Words pairs) {
  for (uint32_t& pair : pairs) {
    const uint32_t low = (pair & 0x7fff) > 0x7f80 ? 0x7fc0 : pair & 0xffff, high = pair >> 16;
    pair = low | ((high & 0x7fff) > 0x7f80 ? 0x7fc0 : high) << 16;
  }
  return pairs;
}

}  // namespace

void check_cache_write(Check& check) {
  uint64_t seed = 13000;
  constexpr int kTokens = 37, kPositions = 100;
  for (const KvType type : kTypes) {
    for (const auto& [kv_heads, head_dim, rotary_dim] :
         {std::tuple{3, 64, 64}, {1, 16, 0}, {2, 80, 32}, {2, 20, 20}, {1, 128, 128}}) {
      for (const Values values : {Values::kUnit, Values::kWide, Values::kSpecial}) {
        Random random(++seed);
        const KvShape shape{kv_heads, head_dim, type};
        Floats k(kTokens, kv_heads * head_dim, random, values, 3), v(kTokens, kv_heads * head_dim, random, values, 1);
        Floats turn(kPositions, rotary_dim, random, Values::kUnit);
        const int32_t blocks[] = {4, 2, 5};
        int32_t positions[kTokens];
        int64_t token_block[kTokens];
        for (int t = 0; t < kTokens; ++t) {
          positions[t] = 20 + t;
          token_block[t] = blocks[positions[t] / kBlockTokens] * shape.block_bytes();
        }
        check.same(text("cache_write type %d kv heads %d head_dim %d rotary_dim %d values %d", int(type), kv_heads, head_dim,
                        rotary_dim, int(values)),
                   [&](const KernelTable& table) {
                     Bytes pool(static_cast<size_t>(kBlocks * shape.block_bytes()));
                     Floats scratch(1, head_dim + 16);
                     CacheWrite p;
                     p.k = k.in(), p.v = v.in(), p.kv = shape.layer(pool.data(), 1), p.token_block = token_block;
                     p.positions = positions, p.rope_table = rotary_dim ? turn.data() : nullptr, p.rotary_dim = rotary_dim;
                     table.cache_write(p, 0, kTokens, scratch.data());
                     if (type == KvType::kBf16) return one_bf16_nan(pool.words());
                     return type == KvType::kF32 ? one_nan(pool.words()) : pool.words();
                   });
      }
    }
  }
  check.end_family("cache_write");
}

void check_attention(Check& check) {
  uint64_t seed = 14000;
  for (const KvType type : kTypes) {
    for (const auto& [kv_heads, group, head_dim] :
         {std::tuple{3, 3, 64}, {1, 1, 16}, {2, 2, 80}, {1, 7, 20}, {1, 4, 128}, {1, 5, 96}}) {
      for (const auto& [position, tokens] : {std::pair{0, 1}, {0, 5}, {31, 1}, {32, 1}, {40, 3}, {100, 1}, {5, 40}}) {
        for (const Values values : {Values::kUnit, Values::kWide}) {
          const float limit = seed % 3 == 0 ? 0.1f : 0.0f;
          attention_case(check, {{kv_heads, head_dim, type}, group, position, tokens, values, 16, false, limit}, ++seed);
          attention_case(check, {{kv_heads, head_dim, type}, group, position, tokens, values, 2, true, limit}, ++seed);
        }
      }
    }
    for (const int chunk_tiles : {1, 2, 3}) {
      for (const auto& [position, tokens] : {std::pair{0, 150}, {63, 2}, {64, 1}, {190, 20}, {223, 1}}) {
        attention_case(check, {{2, 64, type}, 3, position, tokens, Values::kUnit, chunk_tiles}, ++seed);
        attention_case(check, {{1, 20, type}, 1, position, tokens, Values::kWide, chunk_tiles}, ++seed);
        attention_case(check, {{1, 64, type}, 5, position, 1, Values::kUnit, chunk_tiles}, ++seed);
      }
    }
    attention_case(check, {{1, 64, type}, 1, 60, 100}, ++seed);
    attention_case(check, {{1, 16, type}, 100, 33, 2}, ++seed);  // a group beyond a call's query rows
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
        full_case(check, kv_heads, group, head_dim, tokens, values, 2, ++seed, Products::kPairs);
        full_case(check, kv_heads, group, head_dim, tokens, values, 2, ++seed, Products::kBlocks);
      }
    }
  }
  check.end_family("attention_full");
}

}  // namespace taut::check
