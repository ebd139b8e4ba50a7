// Elementary functions, written once on f32x16, so that every ISA gives the same bits. NaN in gives NaN out.
#pragma once
#include "linear_q8.h"  // Activation
#include "simd/f32x16.h"

namespace taut::TAUT_ISA_NS {

// e^x within 2 ulp; -inf gives 0, overflow gives inf. x = n ln 2 + r with ln 2 in two parts (Cody-Waite), then 2^n e^r with a
// minimax polynomial of degree 6 on |r| <= ln 2 / 2 (relative error 3e-9). 2^n is applied in two halves, so results that
// overflow or are subnormal round correctly.
TAUT_FN f32x16 exp(f32x16 x) {
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const f32x16 magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  const f32x16 t = fma(x, set1(0x1.715476p+0f), magic);
  const f32x16 n = sub(t, magic);
  f32x16 r = fma(n, set1(-0x1.62e4p-1f), x);
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  f32x16 p = set1(0x1.6a2434p-10f);
  p = fma(p, r, set1(0x1.1239e2p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const i32x16 whole = sub_i32(as_i32(t), as_i32(magic));
  const i32x16 half = shift_right_signed<1>(whole);
  const i32x16 bias = set1_i32(127);
  const f32x16 s0 = as_f32(shift_left<23>(add_i32(half, bias)));
  const f32x16 s1 = as_f32(shift_left<23>(add_i32(sub_i32(whole, half), bias)));
  return mul(mul(p, s0), s1);
}

// exp(x) for -64 < x <= 0, the same bits as exp in two thirds of its steps; e^-64 below, minus infinity included: nothing beside the 1 that
// every softmax holds. 2^n comes straight out of t, whose low bits hold n + 127. The constants are operands in memory: 16 registers do
// not hold them beside a loop's own values, and GCC would keep them on the stack. `constants` comes from exp_constants, outside of the loop.
#define TAUT_LANES(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
alignas(64) static const float kExpConstants[] = {
    TAUT_LANES(-64.0f),           TAUT_LANES(0x1.715476p+0f),  TAUT_LANES(12583039.0f),    TAUT_LANES(-0x1.62e4p-1f),
    TAUT_LANES(-0x1.7f7d1cp-20f), TAUT_LANES(0x1.6a2434p-10f), TAUT_LANES(0x1.1239e2p-7f), TAUT_LANES(0x1.5558f2p-5f),
    TAUT_LANES(0x1.555492p-3f),   TAUT_LANES(0x1.fffffcp-2f),  TAUT_LANES(1.0f),
};
#undef TAUT_LANES

TAUT_FN const float* exp_constants() {
  const float* constants = kExpConstants;
  asm("" : "+r"(constants));  // the compiler no longer knows the values, and so leaves them where they are
  return constants;
}

TAUT_FN f32x16 exp_negative(f32x16 x, const float* constants) {
  const auto constant = [constants](int i) __attribute__((always_inline)) { return load(constants + 16 * i); };
  x = max(constant(0), x);  // NaN: itself
  const f32x16 t = fma(x, constant(1), constant(2));
  const f32x16 n = sub(t, constant(2));
  f32x16 r = fma(n, constant(3), x);
  r = fma(n, constant(4), r);
  f32x16 p = fma(constant(5), r, constant(6));
  p = fma(p, r, constant(7));
  p = fma(p, r, constant(8));
  p = fma(p, r, constant(9));
  p = fma(p, r, constant(10));
  p = fma(p, r, constant(10));
  return mul(p, as_f32(shift_left<23>(as_i32(t))));
}

// erf x = sign(x) (1 - exp(-|x| Q(|x|))): Q fits -ln(erfc t) / t on [0, 4]; absolute error below 1.5e-7.
TAUT_FN f32x16 erf(f32x16 x) {
  const f32x16 t = min(set1(4.0f), abs(x));
  f32x16 q = set1(0x1.07bd4ap-15f);
  q = fma(q, t, set1(-0x1.43cd84p-12f));
  q = fma(q, t, set1(0x1.0ea35ap-10f));
  q = fma(q, t, set1(0x1.1981cep-11f));
  q = fma(q, t, set1(-0x1.40dd14p-6f));
  q = fma(q, t, set1(0x1.a58f0ap-4f));
  q = fma(q, t, set1(0x1.45f024p-1f));
  q = fma(q, t, set1(0x1.20dd88p+0f));
  return copy_sign(sub(set1(1.0f), exp_negative(neg(mul(q, t)), exp_constants())), x);
}

// tanh x = x + x^3 P(x^2) below 0.625, else sign(x) (1 - 2 / (e^(2|x|) + 1)).
TAUT_FN f32x16 tanh(f32x16 x) {
  const f32x16 a = abs(x), x2 = mul(x, x);
  f32x16 p = set1(-0x1.73640cp-8f);
  p = fma(p, x2, set1(0x1.519c8ep-6f));
  p = fma(p, x2, set1(-0x1.b827fep-5f));
  p = fma(p, x2, set1(0x1.110692p-3f));
  p = fma(p, x2, set1(-0x1.555530p-2f));
  const f32x16 small = fma(mul(p, x2), x, x);
  const f32x16 e = exp(add(a, a));
  const f32x16 large = copy_sign(sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))), x);
  return select(lt(a, set1(0.625f)), small, large);
}

TAUT_FN f32x16 relu(f32x16 x) { return max(zero(), x); }

// x / (1 + e^-x)
TAUT_FN f32x16 silu(f32x16 x) { return div(x, add(set1(1.0f), exp(neg(x)))); }

// x/2 (1 + erf(x / sqrt 2))
TAUT_FN f32x16 gelu(f32x16 x) { return mul(mul(set1(0.5f), x), add(set1(1.0f), erf(mul(x, set1(0x1.6a09e6p-1f))))); }

// x/2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + e^-2u)
TAUT_FN f32x16 gelu_tanh(f32x16 x) {
  const f32x16 cubic = fma(mul(set1(0.044715f), mul(x, x)), x, x);
  return div(x, add(set1(1.0f), exp(mul(set1(-0x1.988454p+0f), cubic))));
}

TAUT_FN f32x16 activate(f32x16 x, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kRelu:
      return relu(x);
    case Activation::kTanh:
      return tanh(x);
    case Activation::kNone:
      break;
  }
  return x;
}

}  // namespace taut::TAUT_ISA_NS
