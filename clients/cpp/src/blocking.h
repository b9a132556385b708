#pragma once

#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <utility>
#include <vector>

#include "context.h"
#include "status.h"
#include "triptych/stream.h"

namespace triptych::detail {

/// Reads a server stream of gRPC.
template <class Response>
class BlockingSource final : public StreamSource<Response> {
 public:
  BlockingSource(std::shared_ptr<CallContext> context, std::unique_ptr<grpc::ClientReader<Response>> reader)
      : context_(std::move(context)), reader_(std::move(reader)) {}

  BlockingSource(const BlockingSource&) = delete;
  BlockingSource& operator=(const BlockingSource&) = delete;

  ~BlockingSource() override {
    if (ended_) return;
    cancel();
    Response unread;
    while (reader_->Read(&unread)) {
    }
    reader_->Finish();
  }

  bool next(Response& response) override {
    if (!ended_ && reader_->Read(&response)) return true;
    if (!ended_) {
      ended_ = true;
      error_ = error_of(reader_->Finish(), context_->request_id);
      media_ = detail::trailing_media(*context_);
    }
    if (error_) error_->raise();
    return false;
  }

  void cancel() noexcept override { context_->grpc.TryCancel(); }

  const std::vector<v1::MediaReport>& trailing_media() const override { return media_; }

 private:
  std::shared_ptr<CallContext> context_;
  std::unique_ptr<grpc::ClientReader<Response>> reader_;  // uses the context, so it is destroyed first
  bool ended_ = false;
  std::shared_ptr<const Error> error_;
  std::vector<v1::MediaReport> media_;
};

}  // namespace triptych::detail
