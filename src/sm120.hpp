/* sm120.hpp: sm120.h for C++17. Handles close themselves, and failures are exceptions.
 *
 *   sm120::Device device;                              // $PYSM120_DEVICE, else the first usable GPU, else virtual
 *   sm120::Buffer q(device, bytes);                    // device memory
 *   auto args = sm120::make<sm120_attention_args>();   // zeros, with its size
 *   args.q.address = q.address();
 *   sm120::Workspace workspace(device);
 *   sm120::attention(device, args, workspace);
 *
 * Structs, constants and units are those of sm120.h. A Device must outlive what was made from it. */
#ifndef SM120_HPP
#define SM120_HPP

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "sm120.h"

namespace sm120 {

/* A failed call: its status, the CUresult behind it or 0, and the library's message. */
class Error : public std::runtime_error {
  public:
    explicit Error(sm120_status status)
        : std::runtime_error(sm120_last_error()), status_(status), driver_error_(sm120_last_driver_error()) {}
    sm120_status status() const noexcept {
        return status_;
    }
    int driver_error() const noexcept {
        return driver_error_;
    }

  private:
    sm120_status status_;
    int driver_error_;
};

/* Throw if a call failed. */
inline void check(sm120_status status) {
    if (status != SM120_OK) {
        throw Error(status);
    }
}

/* Return a struct of zeros whose `size` is set. */
template <class Struct> Struct make() {
    Struct made{};
    made.size = sizeof made;
    return made;
}

/* An open device. */
class Device {
  public:
    explicit Device(const char *name = nullptr) {
        sm120_device *opened = nullptr;
        check(sm120_device_open(name, &opened));
        handle_.reset(opened);
    }
    /* Adopt a context; nullptr: the current one. */
    static Device of_context(const char *name, sm120_context context) {
        sm120_device *opened = nullptr;
        check(sm120_device_open_context(name, context, &opened));
        return Device(opened);
    }
    sm120_device *get() const noexcept {
        return handle_.get();
    }
    sm120_device_info info() const {
        auto info = make<sm120_device_info>();
        check(sm120_device_query(get(), &info));
        return info;
    }
    sm120_context context() const {
        sm120_context context = nullptr;
        check(sm120_device_context(get(), &context));
        return context;
    }
    void synchronize() const {
        check(sm120_device_synchronize(get()));
    }

  private:
    explicit Device(sm120_device *opened) : handle_(opened) {}
    struct Close {
        void operator()(sm120_device *device) const noexcept {
            sm120_device_close(device);
        }
    };
    std::unique_ptr<sm120_device, Close> handle_;
};

/* Device memory. */
class Buffer {
  public:
    Buffer(const Device &device, std::size_t bytes) : Buffer(device.get(), bytes) {}
    Buffer(sm120_device *device, std::size_t bytes) : device_(device), bytes_(bytes) {
        check(sm120_alloc(device_, bytes, &address_));
    }
    Buffer(Buffer &&other) noexcept
        : device_(other.device_), bytes_(std::exchange(other.bytes_, 0)), address_(std::exchange(other.address_, 0)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(device_, other.device_);
        std::swap(bytes_, other.bytes_);
        std::swap(address_, other.address_);
        return *this;
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() {
        if (address_ != 0) {
            sm120_free(device_, address_);
        }
    }
    sm120_address address() const noexcept {
        return address_;
    }
    std::size_t bytes() const noexcept {
        return bytes_;
    }
    /* Copy from or to the host, in stream order. */
    void write(const void *from, std::size_t bytes, sm120_stream stream = nullptr) {
        check(sm120_copy_to_device(device_, address_, from, bytes, stream));
    }
    void read(void *to, std::size_t bytes, sm120_stream stream = nullptr) const {
        check(sm120_copy_to_host(device_, to, address_, bytes, stream));
    }

  private:
    sm120_device *device_;
    std::size_t bytes_;
    sm120_address address_ = 0;
};

/* A stream. */
class Stream {
  public:
    explicit Stream(const Device &device) : device_(device.get()) {
        check(sm120_stream_create(device_, &stream_));
    }
    Stream(Stream &&other) noexcept : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
    Stream &operator=(Stream &&other) noexcept {
        std::swap(device_, other.device_);
        std::swap(stream_, other.stream_);
        return *this;
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    ~Stream() {
        if (stream_ != nullptr) {
            sm120_stream_destroy(device_, stream_);
        }
    }
    sm120_stream get() const noexcept {
        return stream_;
    }
    void synchronize() const {
        check(sm120_stream_synchronize(device_, stream_));
    }

  private:
    sm120_device *device_;
    sm120_stream stream_ = nullptr;
};

/* A workspace that grows, for the calls of one stream. Growing allocates: call reserve, or the operation once, before a
 * CUDA graph captures it. */
class Workspace {
  public:
    explicit Workspace(const Device &device) : device_(device.get()) {}
    void reserve(std::size_t bytes) {
        if (bytes > this->bytes()) {
            buffer_.reset(); /* the driver waits for the work that uses it */
            buffer_ = std::make_unique<Buffer>(device_, bytes);
        }
    }
    sm120_address address() const noexcept {
        return buffer_ ? buffer_->address() : 0;
    }
    std::size_t bytes() const noexcept {
        return buffer_ ? buffer_->bytes() : 0;
    }

  private:
    sm120_device *device_;
    std::unique_ptr<Buffer> buffer_;
};

/* Operations, by the names of sm120.h without sm120_. */
#define SM120_HPP_OPERATION(name)                                                                                      \
    inline void name(const Device &device, const sm120_##name##_args &args) {                                          \
        check(sm120_##name(device.get(), &args));                                                                      \
    }
#define SM120_HPP_OPERATION_WITH_WORKSPACE(name)                                                                       \
    inline std::size_t name##_workspace(const Device &device, const sm120_##name##_args &args) {                       \
        std::size_t bytes = 0;                                                                                         \
        check(sm120_##name##_workspace(device.get(), &args, &bytes));                                                  \
        return bytes;                                                                                                  \
    }                                                                                                                  \
    inline void name(const Device &device, const sm120_##name##_args &args, sm120_address workspace,                   \
                     std::size_t workspace_bytes) {                                                                    \
        check(sm120_##name(device.get(), &args, workspace, workspace_bytes));                                          \
    }                                                                                                                  \
    inline void name(const Device &device, const sm120_##name##_args &args, Workspace &workspace) {                    \
        workspace.reserve(name##_workspace(device, args));                                                             \
        name(device, args, workspace.address(), workspace.bytes());                                                    \
    }
SM120_HPP_OPERATION_WITH_WORKSPACE(attention)
SM120_HPP_OPERATION_WITH_WORKSPACE(attention_backward)
SM120_HPP_OPERATION_WITH_WORKSPACE(attention_with_kv_cache)
SM120_HPP_OPERATION_WITH_WORKSPACE(matvec)
SM120_HPP_OPERATION(merge_states)
SM120_HPP_OPERATION(quantize_mxfp8)
SM120_HPP_OPERATION(quantize_nvfp4)
SM120_HPP_OPERATION(kv_cache_append)
SM120_HPP_OPERATION(kv_cache_gather)
SM120_HPP_OPERATION(dequantize)
SM120_HPP_OPERATION(repack)
SM120_HPP_OPERATION(repack_scales)
#undef SM120_HPP_OPERATION
#undef SM120_HPP_OPERATION_WITH_WORKSPACE

} // namespace sm120
#endif
