// The Python module `ot_backends.host._kernel`: arrays in, arrays out, the GIL released in between.
// Plain CPython and NumPy C API: the call itself must stay within a few microseconds, and nothing but
// NumPy is needed to build it.
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>

#include "batch.hpp"
#include "broadcast.hpp"
#include "messages.hpp"

namespace {

using namespace otb;

struct Ref {  // an owned reference
    PyObject* p = nullptr;
    explicit Ref(PyObject* p = nullptr) : p(p) {}
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() { Py_XDECREF(p); }
    PyArrayObject* array() const { return reinterpret_cast<PyArrayObject*>(p); }
    void* data() const { return PyArray_DATA(array()); }
};

PyArrayObject* as_array(PyObject* x, int type) {
    return reinterpret_cast<PyArrayObject*>(PyArray_FROM_OTF(x, type, NPY_ARRAY_IN_ARRAY));
}

// The leading dimensions of x join the broadcast shape. False, with a Python error, if they don't fit.
bool include(Lead& lead, const char* name, PyArrayObject* x, int core) {
    const int count = PyArray_NDIM(x) - core;
    if (count < 0) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; it needs at least %d", name,
                     PyArray_NDIM(x), core);
        return false;
    }
    i64 shape[MAX_LEAD];
    for (int d = 0; d < count && d < MAX_LEAD; d++) shape[d] = PyArray_DIM(x, d);
    if (lead.include(shape, count)) return true;
    PyErr_Format(PyExc_ValueError, "the leading dimensions of %s don't broadcast with those before it",
                 name);
    return false;
}

Index index_of(const Lead& lead, PyArrayObject* x, int core) {
    i64 shape[MAX_LEAD];
    const int count = PyArray_NDIM(x) - core;
    for (int d = 0; d < count; d++) shape[d] = PyArray_DIM(x, d);
    return Index(lead, shape, count);
}

// The arrays of the result, in the order of the tuple and of `Output`.
struct Results {
    static constexpr int COUNT = 15;
    PyObject* items[COUNT] = {};
    Output base{};
    i64 n, m;

    bool allocate(const Lead& lead, i64 n_, i64 m_) {
        n = n_, m = m_;
        const i64 N = n + m;
        const struct {
            int type;
            npy_intp size;
        } specs[COUNT] = {{NPY_INT32, 3},      {NPY_DOUBLE, -1},    {NPY_DOUBLE, n},
                          {NPY_DOUBLE, m},     {NPY_DOUBLE, N - 1}, {NPY_INT32, N - 1},
                          {NPY_INT32, N - 1},  {NPY_INT32, N},      {NPY_INT32, N},
                          {NPY_BOOL, N - 1},   {NPY_INT32, N},      {NPY_DOUBLE, -1},
                          {NPY_DOUBLE, -1},    {NPY_INT32, -1},     {NPY_DOUBLE, 2}};
        npy_intp shape[MAX_LEAD + 1];
        for (int d = 0; d < lead.count; d++) shape[d] = static_cast<npy_intp>(lead.shape[d]);
        void* data[COUNT];
        for (int k = 0; k < COUNT; k++) {
            shape[lead.count] = specs[k].size;
            items[k] = PyArray_SimpleNew(lead.count + (specs[k].size >= 0), shape, specs[k].type);
            if (!items[k]) return false;
            data[k] = PyArray_DATA(reinterpret_cast<PyArrayObject*>(items[k]));
        }
        auto ints = [&](int k) { return static_cast<i32*>(data[k]); };
        auto reals = [&](int k) { return static_cast<double*>(data[k]); };
        base = {ints(0),  reals(1), reals(2), reals(3), reals(4),
                ints(5),  ints(6),  ints(7),  ints(8),  static_cast<bool*>(data[9]),
                ints(10), reals(11), reals(12), ints(13), reals(14)};
        return true;
    }

    Output at(i64 k) const { return base.at(k, n, m); }

    PyObject* tuple() {
        PyObject* t = PyTuple_New(COUNT);
        if (!t) return nullptr;
        for (int k = 0; k < COUNT; k++) PyTuple_SET_ITEM(t, k, items[k]), items[k] = nullptr;
        return t;
    }

    ~Results() {
        for (PyObject* p : items) Py_XDECREF(p);
    }
};

thread_local PyThreadState* released = nullptr;

// Ctrl-C, asked with the GIL taken back for a moment. Only the thread that called may ask.
bool interrupted() {
    PyEval_RestoreThread(released);
    bool stop = PyErr_CheckSignals() != 0;
    released = PyEval_SaveThread();
    return stop;
}

// Runs the batch without the GIL. False if an exception is set.
template <class Make, class GetProblem>
bool run(i64 count, int threads, const Options& options, Make make, GetProblem problem,
         const Results& results) {
    bool memory = true;
    released = PyEval_SaveThread();
    try {
        solve_batch(count, threads, options, interrupted, make, problem,
                    [&](i64 k) { return results.at(k); });
    } catch (const std::bad_alloc&) {
        memory = false;
    }
    PyEval_RestoreThread(released);
    if (!memory) PyErr_NoMemory();
    return memory && !PyErr_Occurred();
}

struct Common {  // what both entries share
    PyObject *a, *b, *basis = Py_None;
    int threads = 1;
    long long max_pivots = 0;
    double time_limit = 0, balance = 1e-9, mass_tolerance = -1, rounding = 1e-12;

    Options options() const { return {max_pivots, time_limit, balance, mass_tolerance, rounding}; }
};

bool fits(const char* name, PyArrayObject* x, npy_intp size, const char* what) {
    npy_intp have = PyArray_DIM(x, PyArray_NDIM(x) - 1);
    if (have == size) return true;
    PyErr_Format(PyExc_ValueError, "%s has length %zd; %s needs %zd", name, have, what, size);
    return false;
}

bool small_enough(npy_intp n, npy_intp m) {
    if (n >= 1 && m >= 1 && n + m < (npy_intp{1} << 28)) return true;
    PyErr_Format(PyExc_ValueError, "a problem of %zd rows and %zd columns is empty or too large", n, m);
    return false;
}

// The rest of a call, once the costs are known: make(k) builds those of problem k.
template <class GetMake>
PyObject* solve_common(Common& c, Lead& lead, npy_intp n, npy_intp m, GetMake get_make) {
    Ref a(reinterpret_cast<PyObject*>(as_array(c.a, NPY_DOUBLE)));
    if (!a.p) return nullptr;
    Ref b(reinterpret_cast<PyObject*>(as_array(c.b, NPY_DOUBLE)));
    if (!b.p) return nullptr;
    Ref basis(c.basis == Py_None ? nullptr
                                 : reinterpret_cast<PyObject*>(as_array(c.basis, NPY_INT32)));
    if (c.basis != Py_None && !basis.p) return nullptr;
    if (!include(lead, "a", a.array(), 1) || !include(lead, "b", b.array(), 1) ||
        (basis.p && !include(lead, "basis", basis.array(), 1)))
        return nullptr;
    if (!small_enough(n, m) || !fits("a", a.array(), n, "M") || !fits("b", b.array(), m, "M") ||
        (basis.p && !fits("basis", basis.array(), n + m, "M")))
        return nullptr;
    Results results;
    if (!results.allocate(lead, n, m)) return nullptr;
    const Index at_a = index_of(lead, a.array(), 1), at_b = index_of(lead, b.array(), 1),
                at_basis = index_of(lead, basis.p ? basis.array() : a.array(), 1);
    const auto* pa = static_cast<const double*>(a.data());
    const auto* pb = static_cast<const double*>(b.data());
    const auto* pt = basis.p ? static_cast<const i32*>(basis.data()) : nullptr;
    const i32 rows = static_cast<i32>(n), columns = static_cast<i32>(m);
    auto problem = [&](i64 k) {
        return Problem{rows, columns, pa + at_a(k) * n, pb + at_b(k) * m,
                       pt ? pt + at_basis(k) * (n + m) : nullptr};
    };
    auto make = get_make(lead);
    if (!run(lead.size(), c.threads, c.options(), make, problem, results)) return nullptr;
    return results.tuple();
}

template <class T> PyObject* solve_matrix(Common& c, PyArrayObject* M) {
    Lead lead;
    if (!include(lead, "M", M, 2)) return nullptr;
    const int d = PyArray_NDIM(M);
    const npy_intp n = PyArray_DIM(M, d - 2), m = PyArray_DIM(M, d - 1);
    const T* cells = static_cast<const T*>(PyArray_DATA(M));
    return solve_common(c, lead, n, m, [&](const Lead& all) {
        const Index at = index_of(all, M, 2);
        return [=](i64 k) {
            return MatrixCost<T>{static_cast<i32>(n), static_cast<i32>(m), cells + at(k) * n * m};
        };
    });
}

PyObject* solve_entry(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"M",          "a",       "b",     "basis", "threads", "max_pivots",
                                  "time_limit", "balance", "mass_tolerance", "rounding", nullptr};
    Common c;
    PyObject* costs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|OiLdddd", const_cast<char**>(names), &costs,
                                     &c.a, &c.b, &c.basis, &c.threads, &c.max_pivots, &c.time_limit,
                                     &c.balance, &c.mass_tolerance, &c.rounding))
        return nullptr;
    bool single = PyArray_Check(costs) &&
                  PyArray_TYPE(reinterpret_cast<PyArrayObject*>(costs)) == NPY_FLOAT32;
    Ref M(reinterpret_cast<PyObject*>(as_array(costs, single ? NPY_FLOAT32 : NPY_DOUBLE)));
    if (!M.p) return nullptr;
    return single ? solve_matrix<float>(c, M.array()) : solve_matrix<double>(c, M.array());
}

PyObject* solve_points_entry(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"X",     "Y",       "a",          "b",          "metric", "basis",
                                  "threads", "max_pivots", "time_limit", "balance", "mass_tolerance", "rounding", nullptr};
    Common c;
    PyObject *px, *py;
    int metric;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOi|OiLdddd", const_cast<char**>(names), &px, &py,
                                     &c.a, &c.b, &metric, &c.basis, &c.threads, &c.max_pivots,
                                     &c.time_limit, &c.balance, &c.mass_tolerance, &c.rounding))
        return nullptr;
    if (metric < 0 || metric > 2) {
        PyErr_SetString(PyExc_ValueError, "metric must be 0 (sqeuclidean), 1 (euclidean) or 2 (cityblock)");
        return nullptr;
    }
    Ref X(reinterpret_cast<PyObject*>(as_array(px, NPY_DOUBLE)));
    if (!X.p) return nullptr;
    Ref Y(reinterpret_cast<PyObject*>(as_array(py, NPY_DOUBLE)));
    if (!Y.p) return nullptr;
    Lead lead;
    if (!include(lead, "X", X.array(), 2) || !include(lead, "Y", Y.array(), 2)) return nullptr;
    const int dx = PyArray_NDIM(X.array()), dy = PyArray_NDIM(Y.array());
    const npy_intp n = PyArray_DIM(X.array(), dx - 2), m = PyArray_DIM(Y.array(), dy - 2);
    const npy_intp d = PyArray_DIM(X.array(), dx - 1);
    if (d < 1 || d >= (npy_intp{1} << 28)) {
        PyErr_SetString(PyExc_ValueError, "X needs at least one coordinate per point");
        return nullptr;
    }
    if (!fits("Y", Y.array(), d, "X")) return nullptr;
    const auto* x = static_cast<const double*>(X.data());
    const auto* y = static_cast<const double*>(Y.data());
    return solve_common(c, lead, n, m, [&](const Lead& all) {
        const Index at_x = index_of(all, X.array(), 2), at_y = index_of(all, Y.array(), 2);
        return [=](i64 k) {
            return PointCost(static_cast<Metric>(metric), static_cast<i32>(n), static_cast<i32>(m),
                             static_cast<i32>(d), x + at_x(k) * n * d, y + at_y(k) * m * d);
        };
    });
}

const char* const isa_names[] = {"portable", "avx2", "avx512"};

// Without an argument: the instruction set in use. With one: uses it, if the processor has it.
PyObject* isa_entry(PyObject*, PyObject* args) {
    const char* name = nullptr;
    if (!PyArg_ParseTuple(args, "|z", &name)) return nullptr;
    if (name) {
        int wanted = -1, best = static_cast<int>(detect_isa());
        for (int k = 0; k <= best; k++)
            if (std::strcmp(name, isa_names[k]) == 0) wanted = k;
        if (wanted < 0) {
            PyErr_Format(PyExc_ValueError, "this processor has no \"%s\"", name);
            return nullptr;
        }
        isa() = static_cast<Isa>(wanted);
    }
    return PyUnicode_FromString(isa_names[static_cast<int>(isa())]);
}

PyObject* message_entry(PyObject*, PyObject* args) {
    int status, row, column;
    double sum_a = 0, sum_b = 0;
    if (!PyArg_ParseTuple(args, "iii|dd", &status, &row, &column, &sum_a, &sum_b)) return nullptr;
    return PyUnicode_FromString(message(static_cast<Status>(status), row, column, sum_a, sum_b).c_str());
}

PyMethodDef methods[] = {
    {"solve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(solve_entry)),
     METH_VARARGS | METH_KEYWORDS,
     "solve(M, a, b, basis=None, threads=1, max_pivots=0, time_limit=0.0, balance=1e-9, "
     "mass_tolerance=-1.0, rounding=1e-12)"},
    {"solve_points", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(solve_points_entry)),
     METH_VARARGS | METH_KEYWORDS,
     "solve_points(X, Y, a, b, metric, basis=None, threads=1, max_pivots=0, time_limit=0.0, "
     "balance=1e-9, mass_tolerance=-1.0, rounding=1e-12)"},
    {"isa", isa_entry, METH_VARARGS, "isa(name=None): the instruction set of the row loops"},
    {"message", message_entry, METH_VARARGS,
     "message(status, row, column, sum_a=0.0, sum_b=0.0): what went wrong, for an exception"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "The network simplex kernel.", -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernel() {
    import_array();
    return PyModule_Create(&module);
}
