// The kernel as an XLA custom call on the CPU (`jax.ffi`): no Python, no GIL and no callback thread between
// XLA and the solver. Module `ot_backends.host._kernel_ffi`, with one capsule, `handler`.
//
//     M (..., n, m), a (..., n), b (..., m)   float32 or float64, all the same
//     basis (..., n + m)                      int32; anything that is no tree means a cold start
//     ->  value (...), u (..., n), v (..., m), flow (..., N - 1)     of M's type
//         rows, cols (..., N - 1), order, size (..., N)              int32
//         virtual (..., N - 1)                                       bool
//         basis (..., N)                                             int32
//         dual (...), violation (...)                                of M's type
//         iterations (...)                                           int32
//     with N = n + m: the fields of `Output` (types.hpp), in its order.
//
// Leading dimensions broadcast (vmap_method="expand_dims"). Attributes: threads, max_pivots (int64),
// time_limit, balance, mass_tolerance, rounding (float64).
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <string>
#include <vector>

#include "batch.hpp"
#include "broadcast.hpp"
#include "messages.hpp"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using namespace otb;

ffi::Error invalid(const std::string& text) { return ffi::Error::InvalidArgument(text); }

// One floating output: XLA's own buffer for float64, else a buffer that is cast at the end.
template <class T> class Reals {
public:
    explicit Reals(ffi::AnyBuffer& out) : out_(out.typed_data<T>()), wide_(out.element_count()) {}
    double* data() { return wide_.data(); }
    void store() {
        for (std::size_t k = 0; k < wide_.size(); k++) out_[k] = static_cast<T>(wide_[k]);
    }

private:
    T* out_;
    std::vector<double> wide_;
};
template <> class Reals<double> {
public:
    explicit Reals(ffi::AnyBuffer& out) : out_(out.typed_data<double>()) {}
    double* data() { return out_; }
    void store() {}

private:
    double* out_;
};

template <class T> std::vector<double> widen(const ffi::AnyBuffer& x) {
    const T* p = x.typed_data<T>();
    return {p, p + x.element_count()};
}

bool include(Lead& lead, const ffi::AnyBuffer& x, int core) {
    auto d = x.dimensions();
    return static_cast<int>(d.size()) >= core &&
           lead.include(d.begin(), static_cast<int>(d.size()) - core);
}

Index index_of(const Lead& lead, const ffi::AnyBuffer& x, int core) {
    auto d = x.dimensions();
    return Index(lead, d.begin(), static_cast<int>(d.size()) - core);
}

using Out = ffi::Result<ffi::AnyBuffer>;

// The results in their order: one letter each for the type (M's, int32, bool) and for the size.
inline constexpr int RESULTS = 13;
inline constexpr char TYPES[] = "MMMMIIIIBIMMI", SIZES[] = "1nmEEENNEN111";

template <class T>
ffi::Error run(ffi::AnyBuffer M, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer basis, Out* out,
               int threads, const Options& options) {
    Lead lead;
    if (!include(lead, M, 2) || !include(lead, a, 1) || !include(lead, b, 1) || !include(lead, basis, 1))
        return invalid("the leading dimensions of M, a, b and basis don't broadcast");
    auto shape = M.dimensions();
    const i64 n = shape[shape.size() - 2], m = shape[shape.size() - 1], N = n + m, E = N - 1;
    if (n < 1 || m < 1 || N >= (i64{1} << 28) || a.dimensions().back() != n ||
        b.dimensions().back() != m || basis.dimensions().back() != N)
        return invalid("M (n, m), a (n,), b (m,) and basis (n + m,) don't fit each other, or are empty");
    const i64 count = lead.size();
    for (int k = 0; k < RESULTS; k++) {
        const char c = SIZES[k];
        const i64 size = c == 'n' ? n : c == 'm' ? m : c == 'N' ? N : c == 'E' ? E : 1;
        if (static_cast<i64>(out[k]->element_count()) != count * size)
            return invalid("result " + std::to_string(k) + " was declared with the wrong size");
    }

    const Index at_M = index_of(lead, M, 2), at_a = index_of(lead, a, 1), at_b = index_of(lead, b, 1),
                at_basis = index_of(lead, basis, 1);
    const T* cells = M.typed_data<T>();
    const i32* trees = basis.typed_data<i32>();
    std::vector<double> wide_a, wide_b;
    const double *pa, *pb;
    if constexpr (std::is_same_v<T, double>) {
        pa = a.typed_data<double>(), pb = b.typed_data<double>();
    } else {
        wide_a = widen<T>(a), wide_b = widen<T>(b);
        pa = wide_a.data(), pb = wide_b.data();
    }
    Reals<T> value(*out[0]), u(*out[1]), v(*out[2]), flow(*out[3]), dual(*out[10]), violation(*out[11]);
    auto ints = [&](int k) { return out[k]->typed_data<i32>(); };
    std::vector<double> mass(2 * count);
    std::vector<i32> status(3 * count);
    const Output all{status.data(), value.data(), u.data(),    v.data(),
                     flow.data(),   ints(4),      ints(5),     ints(6),
                     ints(7),       out[8]->typed_data<bool>(), ints(9), dual.data(),
                     violation.data(), ints(12),  mass.data()};

    solve_batch(
        count, threads, options, nullptr,
        [&](i64 k) {
            return MatrixCost<T>{static_cast<i32>(n), static_cast<i32>(m), cells + at_M(k) * n * m};
        },
        [&](i64 k) {
            return Problem{static_cast<i32>(n), static_cast<i32>(m), pa + at_a(k) * n, pb + at_b(k) * m,
                           trees + at_basis(k) * N};
        },
        [&](i64 k) { return all.at(k, n, m); });

    for (i64 k = 0; k < count; k++) {
        const i32* s = &status[3 * k];
        if (s[0] != static_cast<i32>(Status::optimal)) {
            std::string text = message(static_cast<Status>(s[0]), s[1], s[2], mass[2 * k], mass[2 * k + 1]);
            if (count > 1) text += " (in problem " + std::to_string(k) + " of the batch)";
            return invalid(text);
        }
    }
    value.store(), u.store(), v.store(), flow.store(), dual.store(), violation.store();
    return ffi::Error::Success();
}

ffi::Error handle(ffi::AnyBuffer M, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer basis, Out value,
                  Out u, Out v, Out flow, Out rows, Out cols, Out order, Out size, Out is_virtual,
                  Out parent, Out dual, Out violation, Out iterations, i64 threads, i64 max_pivots,
                  double time_limit, double balance, double mass_tolerance, double rounding) {
    Out out[RESULTS] = {value, u,          v,      flow, rows,      cols,      order,
                        size,  is_virtual, parent, dual, violation, iterations};
    const ffi::DataType type = M.element_type();
    bool fits = a.element_type() == type && b.element_type() == type &&
                basis.element_type() == ffi::DataType::S32;
    for (int k = 0; k < RESULTS; k++)
        fits &= out[k]->element_type() == (TYPES[k] == 'M'   ? type
                                           : TYPES[k] == 'B' ? ffi::DataType::PRED
                                                             : ffi::DataType::S32);
    if (!fits) return invalid("M, a, b and the real results need one type, `virtual` bool, basis and the rest int32");
    const Options options{max_pivots, time_limit, balance, mass_tolerance, rounding};
    try {
        if (type == ffi::DataType::F64)
            return run<double>(M, a, b, basis, out, static_cast<int>(threads), options);
        if (type == ffi::DataType::F32)
            return run<float>(M, a, b, basis, out, static_cast<int>(threads), options);
    } catch (const std::bad_alloc&) {
        return ffi::Error(ffi::ErrorCode::kResourceExhausted, "out of memory");
    }
    return invalid("M must be float32 or float64");
}

using Real = ffi::AnyBuffer;

XLA_FFI_DEFINE_HANDLER_SYMBOL(otb_solve, handle,
                              ffi::Ffi::Bind()
                                  .Arg<Real>()
                                  .Arg<Real>()
                                  .Arg<Real>()
                                  .Arg<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Ret<Real>()
                                  .Attr<int64_t>("threads")
                                  .Attr<int64_t>("max_pivots")
                                  .Attr<double>("time_limit")
                                  .Attr<double>("balance")
                                  .Attr<double>("mass_tolerance")
                                  .Attr<double>("rounding"));

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel_ffi", "The network simplex as an XLA custom call.",
                      -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernel_ffi() {
    PyObject* m = PyModule_Create(&module);
    if (!m) return nullptr;
    // The name jax.ffi expects of a handler's capsule.
    PyObject* capsule =
        PyCapsule_New(reinterpret_cast<void*>(otb_solve), "xla._CUSTOM_CALL_TARGET", nullptr);
    if (!capsule || PyModule_AddObject(m, "handler", capsule) < 0) {
        Py_XDECREF(capsule);
        Py_DECREF(m);
        return nullptr;
    }
    return m;
}
